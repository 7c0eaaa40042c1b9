"""What streams lose by following grammars: steps of one engine with and without, in pairs.

Owns the load: every seat decodes; with a grammar, objects of a list that does not end before the
run does. The order is off, on, on, off, so that a machine that grows slower is unfair to neither.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

from chairlift.cluster.grammar import json_grammar
from chairlift.cluster.model_spec import ModelSpec
from chairlift.cluster.protocol import Controls, ReplicaInfo, Request, SamplingParams, Submission
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.engine import Engine
from chairlift.workers.grammar_masks import GrammarMasks
from chairlift.workers.grammars import Grammars
from chairlift.workers.intake import Intake
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Runner

__all__ = ["GrammarCost", "LoadSizes", "measure_cost"]

_ROUND = (False, True, True, False)
_BLOCK_SIZE = 16
_PROMPT = 32
_SCHEMA = {
    "type": "array",
    "minItems": 10_000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "kind": {"enum": ["red", "green", "blue"]},
            "count": {"type": "integer", "minimum": 0, "maximum": 9999},
            "code": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{4}$"},
            "inner": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"type": "number"}}]},
        },
        "required": ["name", "kind", "count", "code", "inner"],
        "additionalProperties": False,
    },
}


@dataclass(frozen=True, slots=True)
class LoadSizes:
    """How much is measured: streams, steps of a run, rounds of four runs, threads."""

    streams: int
    steps: int
    rounds: int
    threads: int


@dataclass(frozen=True, slots=True)
class GrammarCost:
    """Milliseconds of a step, medians over the rounds; and what grammars add to it.

    Attributes:
        added_low, added_high: least and greatest of the rounds.
        per_token_us: added time of a step over its streams.
    """

    without_ms: float
    with_ms: float
    added_ms: float
    added_low: float
    added_high: float
    per_token_us: float


def measure_cost(spec: ModelSpec, grammars: Grammars, sizes: LoadSizes) -> GrammarCost:
    """Load the model and measure. Torch is imported only here, for it takes a while."""
    import torch

    from chairlift.workers.model_loading import Compute, make_runner

    torch.set_num_threads(sizes.threads)
    num_blocks = _blocks(sizes)
    compute = Compute(math="auto", threads=sizes.threads)
    runner = make_runner(spec, compute, num_blocks=num_blocks, block_size=_BLOCK_SIZE)
    runner.warm_up(lambda _fraction: None)
    runner.masks = GrammarMasks(grammars)
    grammars.compiled(json_grammar(_SCHEMA)).result()
    _run(runner, grammars, sizes, follows=True)  # warms up
    pairs = []
    for _ in range(sizes.rounds):
        times: dict[bool, list[float]] = {False: [], True: []}
        for follows in _ROUND:
            times[follows].append(_run(runner, grammars, sizes, follows=follows))
        pairs.append((statistics.mean(times[False]), statistics.mean(times[True])))
    added = [1e3 * (on - off) for off, on in pairs]
    return GrammarCost(
        without_ms=1e3 * statistics.median(off for off, _ in pairs),
        with_ms=1e3 * statistics.median(on for _, on in pairs),
        added_ms=statistics.median(added),
        added_low=min(added),
        added_high=max(added),
        per_token_us=1e3 * statistics.median(added) / sizes.streams,
    )


def _blocks(sizes: LoadSizes) -> int:
    return sizes.streams * -(-(_PROMPT + sizes.steps + 8) // _BLOCK_SIZE)


def _run(runner: Runner, grammars: Grammars, sizes: LoadSizes, *, follows: bool) -> float:
    """Seconds of a step of a new engine in which every seat decodes.

    Nine of ten take longer: what else the machine does can only make them so.
    """
    streams, num_blocks = sizes.streams, _blocks(sizes)
    info = ReplicaInfo(
        replica_id="grammars",
        model="grammars",
        vocab_size=2**16,
        max_sequence_tokens=num_blocks * _BLOCK_SIZE,
        max_sequences=streams,
        max_waiting=0,
        block_size=_BLOCK_SIZE,
        blocks_total=num_blocks,
    )
    controls = Controls(token_budget=streams * _PROMPT, max_sequences=streams)
    scheduler = Scheduler(BlockPool(num_blocks, _BLOCK_SIZE), controls, (), prefix_cache=False)
    intake = Intake(info, grammars=grammars)
    engine = Engine(scheduler, runner, intake, lambda _output: None)
    grammar = json_grammar(_SCHEMA) if follows else ""
    for stream in range(streams):
        sampling = SamplingParams(max_tokens=sizes.steps + 8, seed=stream, grammar=grammar)
        prompt = tuple(range(stream * _PROMPT + 1, (stream + 1) * _PROMPT + 1))
        intake.submit(1, Submission(stream, Request(f"request-{stream}", prompt, sampling)))
    for _ in range(4):  # admission, prompts, and two more
        engine.step()
    times = []
    for _ in range(sizes.steps):
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 10]
