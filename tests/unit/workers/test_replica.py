"""The whole of a replica, with an engine that computes nothing."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from chairlift.cluster.config import ServiceConfig, load_config
from chairlift.cluster.grammar import json_grammar
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.protocol import FinishReason
from chairlift.cluster.vocabulary import Vocabulary
from chairlift.router.ledgers import Ledgers
from chairlift.workers.kv_cache import blocks_for
from chairlift.workers.ledger_file import parse_ledger
from chairlift.workers.replica import Progress, Replica
from chairlift.workers.riders import riders
from chairlift.workers.simulated_runner import simulated_token
from support.rank_replicas import needs_shared_memory, two_rank_replica
from support.raw_stream import raw_stream, submit
from support.tiny_llama import random_weights, write_folder

MEMORY = 64 * 1024**2


def simulated(**overrides) -> ServiceConfig:
    settings = {
        "engine.simulated_step_ms": 1.0,
        "engine.kv_memory": MEMORY,
        "ledger.enabled": False,
        **overrides,
    }
    return load_config(overrides=settings, environment={})


def with_replica(
    scenario: Callable[[Replica, str], Coroutine[Any, Any, None]], config: ServiceConfig
) -> list[Progress]:
    """Returns what the start told of its progress."""
    told: list[Progress] = []

    async def main() -> None:
        replica = Replica(config, "r", told.append)
        replica.build()
        endpoint = await replica.start("127.0.0.1")
        try:
            await scenario(replica, endpoint)
        finally:
            await replica.stop()

    asyncio.run(main())
    return told


def rule(prompt, max_tokens: int, seed: int) -> list[int]:
    spec = read_spec(resolve_model("smollm2"))
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(simulated_token(tokens, seed, 0, spec.vocab_size, spec.eos_token_ids))
    return tokens[len(prompt) :]


def test_a_simulated_replica_is_one_of_the_model_but_for_its_tokens():
    async def scenario(replica, endpoint):
        async with raw_stream(endpoint) as stream:
            message = await stream.read()
            spec = read_spec(resolve_model("smollm2"))
            welcome = message.welcome
            assert (welcome.model, welcome.vocab_size) == (spec.name, spec.vocab_size)
            assert welcome.blocks_total == blocks_for(MEMORY, spec, 16, MEMORY)
            await stream.send(submit(1, (5, 6), max_tokens=30, seed=7))
            await stream.read_until(lambda: stream.finishes)
            assert stream.tokens[1] == rule((5, 6), 30, seed=7)
            assert replica.fault() is None

    assert with_replica(scenario, simulated()) == []


def test_stop_hands_over_what_is_open_before_the_stream_ends():
    async def scenario(replica, endpoint):
        async with raw_stream(endpoint) as stream:
            await stream.send(*(submit(i, (i,), max_tokens=1400, seed=i) for i in range(1, 5)))
            await stream.read_until(lambda: len(stream.tokens) == 4)
            stopping = asyncio.create_task(replica.stop())
            await stream.read_to_end()
            await stopping
            assert stream.finishes == dict.fromkeys(range(1, 5), FinishReason.HANDED_OVER)
            assert stream.load.draining
            for i, told in stream.tokens.items():
                assert told == rule((i,), len(told), seed=i)

    with_replica(scenario, simulated())


def test_a_drained_replica_is_fit_and_refuses():
    async def scenario(replica, endpoint):
        async with raw_stream(endpoint) as stream:
            await replica.drain()
            await stream.send(submit(1))
            await stream.read_until(lambda: stream.answers)
            assert stream.answers[1][0] != 0
            assert replica.fault() is None

    with_replica(scenario, simulated())


def test_a_step_that_takes_too_long_makes_it_unfit():
    async def scenario(replica, endpoint):
        async with raw_stream(endpoint) as stream:
            await stream.send(submit(1, max_tokens=1))
            await stream.read_until(lambda: replica.fault() is not None)
            assert "has been under way" in replica.fault()
            await stream.read_until(lambda: stream.finishes)

    config = simulated(**{"engine.simulated_step_ms": 700.0, "workers.stuck_after_s": 0.1})
    with_replica(scenario, config)


def test_a_simulated_replica_imports_no_torch():
    """It would take seconds and hundreds of megabytes of each process."""
    program = (
        "import sys\n"
        "from chairlift.cluster.config import load_config\n"
        "from chairlift.workers.replica import Replica\n"
        "config = load_config(overrides={'engine.simulated_step_ms': 0,"
        " 'engine.kv_memory': '64MiB', 'ledger.enabled': False}, environment={})\n"
        "Replica(config, 'r', print).build()\n"
        "assert 'torch' not in sys.modules\n"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", program], cwd=root, check=True, timeout=60)


@needs_shared_memory
def test_two_ranks_serve_as_one_and_end_in_order():
    async def main():
        config = simulated(**{"workers.tensor_parallel": 2})
        async with two_rank_replica(config) as replica, raw_stream(replica.endpoint) as stream:
            await stream.send(submit(1, (5, 6), max_tokens=30, seed=7))
            await stream.read_until(lambda: stream.finishes)
            assert stream.tokens[1] == rule((5, 6), 30, seed=7)
            assert [rank.fault() for rank in replica.ranks] == [None, None]
            await stream.send(submit(2, (5, 6), max_tokens=1400))
            await stream.read_until(lambda: stream.tokens.get(2))
            first, second = replica.ranks
            await first.drain()
            await stream.read_until(lambda: 2 in stream.finishes)
            assert stream.finishes[2] is FinishReason.HANDED_OVER
            await first.stop()
            await second.ended()
            assert [rank.fault() for rank in replica.ranks] == ["the engine's thread has ended"] * 2

    asyncio.run(main())


LETTERS = b'{}[]":, -0123456789abcdefghijklnorstu'
"""The text of each token of the tiny model, from the third on; the second ends outputs."""


def letters() -> Vocabulary:
    tokens = (b"<0>", b"<1>", b"<2>", *(bytes([letter]) for letter in LETTERS))
    return Vocabulary(
        tokens, frozenset({0, 1, 2}), lambda text: [LETTERS.index(b) + 3 for b in text.encode()]
    )


@needs_shared_memory
def test_two_ranks_that_compute_a_model_follow_a_grammar_as_one_does(tmp_path):
    """A rank that took another token would differ in its next plan, and end the group."""
    schema = {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "kind": {"enum": ["red", "blue"]}},
        "required": ["id", "kind"],
        "additionalProperties": False,
    }
    wanted = [
        submit(i, (5, 6 + i), max_tokens=100, seed=i, grammar=json_grammar(schema))
        for i in range(1, 5)
    ]
    settings = {
        "model.path": str(write_folder(tmp_path, random_weights())),
        "engine.simulated_step_ms": None,
        "engine.kv_memory": "1MiB",
    }

    async def told(endpoint: str) -> dict[int, list[int]]:
        async with raw_stream(endpoint) as stream:
            await stream.send(*wanted, submit(9, (5, 6), max_tokens=20, seed=9))
            await stream.read_until(lambda: len(stream.finishes) == 5)
            for handle, finish in stream.finishes.items():
                assert (finish is FinishReason.STOP) or handle == 9
            return stream.tokens

    async def main() -> None:
        config = simulated(**settings)
        alone = Replica(config, "r", lambda progress: None, read_vocabulary=letters)
        await asyncio.to_thread(alone.build)
        whole = await told(await alone.start("127.0.0.1"))
        await alone.stop()
        config = simulated(**settings, **{"workers.tensor_parallel": 2})
        async with two_rank_replica(config, read_vocabulary=letters) as replica:
            assert await told(replica.endpoint) == whole
            assert [rank.fault() for rank in replica.ranks] == [None, None]
        for i in range(1, 5):
            fields = json.loads(bytes(LETTERS[token - 3] for token in whole[i][:-1]))
            assert list(fields) == ["id", "kind"] and fields["kind"] in ("red", "blue")
        assert len({tuple(tokens) for tokens in whole.values()}) == 5

    asyncio.run(main())


@needs_shared_memory
def test_a_replica_that_loses_a_rank_hands_over_and_is_unfit():
    async def main():
        config = simulated(**{"workers.tensor_parallel": 2})
        async with two_rank_replica(config) as replica, raw_stream(replica.endpoint) as stream:
            await stream.send(*(submit(i, (i,), max_tokens=1400, seed=i) for i in range(1, 5)))
            await stream.read_until(lambda: len(stream.tokens) == 4)
            replica.lose(rank=1)
            await stream.read_until(lambda: len(stream.finishes) == 4)
            assert stream.finishes == dict.fromkeys(range(1, 5), FinishReason.HANDED_OVER)
            for i, told in stream.tokens.items():
                assert told == rule((i,), len(told), seed=i)
            for rank in replica.ranks:
                await rank.ended()
                assert "RankLost" in rank.fault()

    asyncio.run(main())


def test_a_replica_hands_out_its_ledger_while_it_runs():
    async def scenario(replica, endpoint):
        ledgers = Ledgers(lambda: {"r": endpoint})
        async with raw_stream(endpoint) as stream:
            await stream.send(submit(1, (5, 6), max_tokens=1000))
            await stream.read_until(lambda: len(stream.tokens.get(1, ())) > 5)
            file = parse_ledger(await ledgers.fetch("r"))
            (rider,) = riders(file.header, file).riders
            assert (file.header.replica_id, rider.prompt, rider.finish) == ("r", 2, "")
            assert rider.output > 5

    with_replica(scenario, simulated(**{"ledger.enabled": True}))
