"""Runs one engine over given work, in this process and without a network, and times it.

Owns how work reaches the engine and what is measured; knows nothing of comparisons. The engine,
scheduler and intake are those that serve requests; only the stream server is left out.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chairlift.cluster.protocol import (
    Answer,
    Batching,
    Controls,
    ReplicaInfo,
    Request,
    SamplingParams,
    Submission,
)
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.engine import Engine, StepOutput
from chairlift.workers.intake import Intake
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Runner, StepPlan, StepResult

__all__ = ["EngineRun", "EngineSizes", "Work", "digest_of", "run_engine"]

_ORIGIN = 1


@dataclass(frozen=True, slots=True)
class Work:
    """One request: when it arrives, its prompt, and exactly how many tokens it will have."""

    at_s: float
    prompt: tuple[int, ...]
    output: int


@dataclass(frozen=True, slots=True)
class EngineSizes:
    """What stays the same in every mode."""

    seats: int
    token_budget: int
    num_blocks: int
    block_size: int
    vocab_size: int


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What one run came to; times in seconds.

    Attributes:
        seconds: from the first arrival to the last token.
        steps: forward passes.
        occupied: seats that took part in a step, summed over the steps.
        first_token, latency: from arrival to the first and the last token, in order of the work;
            with a limit of ``in_flight``, from when a request's turn came.
        digests: of each request's tokens, to tell whether two runs gave the same ones.
    """

    batching: Batching
    seconds: float
    steps: int
    occupied: int
    preemptions: int
    output_tokens: int
    first_token: tuple[float, ...]
    latency: tuple[float, ...]
    digests: tuple[str, ...]

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.seconds


def run_engine(
    work: Sequence[Work],
    batching: Batching,
    runner: Runner,
    sizes: EngineSizes,
    clock: Callable[[], float] = time.perf_counter,
    *,
    in_flight: int | None = None,
) -> EngineRun:
    """Run all the work to its end in one mode.

    Args:
        work: what there is to do.
        batching: the mode.
        runner: the model.
        sizes: the engine's.
        clock: in seconds.
        in_flight: how many requests are under way at most, whenever they arrive; None for all.

    Raises:
        RuntimeError: the engine refused a request, or one ended before its last token.
    """
    counted = _CountedRunner(runner)
    intake = Intake(_info(work, sizes))
    controls = Controls(
        batching=batching, token_budget=sizes.token_budget, max_sequences=sizes.seats
    )
    scheduler = Scheduler(BlockPool(sizes.num_blocks, sizes.block_size), controls, ())
    progress = _Progress(clock, len(work))
    engine = Engine(scheduler, counted, intake, progress.take, clock)
    start = clock()
    due = sorted(range(len(work)), key=lambda i: work[i].at_s)
    arrived = [start + one.at_s for one in work]
    sent, limit = 0, in_flight or len(work)
    while progress.unfinished:
        while sent < min(len(work), len(work) - progress.unfinished + limit):
            handle, now = due[sent], clock()
            if arrived[handle] > now:
                break
            if in_flight is not None:
                arrived[handle] = now
            _check(intake.submit(_ORIGIN, _submission(handle, work[handle])))
            sent += 1
        if not engine.step():
            time.sleep(max(0.0, arrived[due[sent]] - clock()))
    for one, tokens in zip(work, progress.tokens, strict=True):
        if len(tokens) != one.output:
            raise RuntimeError(f"{one.output} tokens were due, {len(tokens)} came")
    return EngineRun(
        batching=batching,
        seconds=max(progress.last) - start,
        steps=counted.steps,
        occupied=counted.occupied,
        preemptions=engine.load.preemptions,
        output_tokens=sum(one.output for one in work),
        first_token=_differences(progress.first, arrived),
        latency=_differences(progress.last, arrived),
        digests=tuple(digest_of(tokens) for tokens in progress.tokens),
    )


class _CountedRunner:
    """A runner that notes how many seats take part in its steps."""

    def __init__(self, runner: Runner) -> None:
        self.steps = 0
        self.occupied = 0
        self._runner = runner

    def advance(self, plan: StepPlan) -> StepResult:
        self.steps += 1
        self.occupied += len(plan.slices)
        return self._runner.advance(plan)


@dataclass(slots=True)
class _Progress:
    """The engine's sink: tokens of each handle, and when its first and its last one came."""

    clock: Callable[[], float]
    unfinished: int
    tokens: list[list[int]] = field(init=False)
    first: list[float] = field(init=False)
    last: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = [[] for _ in range(self.unfinished)]
        self.first = [0.0] * self.unfinished
        self.last = [0.0] * self.unfinished

    def take(self, output: StepOutput) -> None:
        now = self.clock()
        for delta in output.deltas.get(_ORIGIN, ()):
            tokens = self.tokens[delta.handle]
            if delta.tokens and not tokens:
                self.first[delta.handle] = now
            tokens.extend(delta.tokens)
            if delta.finish is not None:
                self.last[delta.handle] = now
                self.unfinished -= 1


def _differences(times: Sequence[float], arrived: Sequence[float]) -> tuple[float, ...]:
    return tuple(at - start for at, start in zip(times, arrived, strict=True))


def digest_of(tokens: Sequence[int]) -> str:
    """Equal for equal tokens, and for no others."""
    return hashlib.sha256(repr(tokens).encode()).hexdigest()[:16]


def _submission(handle: int, work: Work) -> Submission:
    sampling = SamplingParams(max_tokens=work.output, seed=handle, ignore_eos=True)
    return Submission(handle, Request(id=str(handle), prompt=work.prompt, sampling=sampling))


def _check(answer: Answer) -> None:
    if answer.refusal is not None:
        raise RuntimeError(f"the engine refused: {answer.refusal.name}: {answer.detail}")


def _info(work: Sequence[Work], sizes: EngineSizes) -> ReplicaInfo:
    return ReplicaInfo(
        replica_id="study",
        model="study",
        vocab_size=sizes.vocab_size,
        max_sequence_tokens=sizes.num_blocks * sizes.block_size,
        max_sequences=sizes.seats,
        max_waiting=len(work),
        block_size=sizes.block_size,
        blocks_total=sizes.num_blocks,
    )
