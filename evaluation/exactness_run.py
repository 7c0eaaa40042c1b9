"""One schedule of given requests on one engine, and what each of them was told.

Owns how a schedule (who arrives when, which limits are in force) is played, step by step and
without a clock, and the record of every token and log probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chairlift.cluster.protocol import (
    Batching,
    Controls,
    FinishReason,
    ReplicaInfo,
    Request,
    Submission,
    TokenLogprobs,
)
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.engine import Engine, StepOutput
from chairlift.workers.intake import Intake
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Runner

__all__ = ["Answer", "Player", "Schedule", "ScheduleResult", "play"]

_ORIGIN = 1
_HANDLES = 64
"""Handles between two requests, so that each has room for its choices."""


@dataclass(slots=True)
class Answer:
    """All that one choice was told."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | None = None
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything that must not matter.

    Attributes:
        order: indices of the requests that take part, in order of arrival; may repeat.
        at_step: when each of ``order`` arrives.
        rounds: how often the whole is played on the same engine; from the second on its prefix
            cache is warm.
    """

    order: tuple[int, ...]
    at_step: tuple[int, ...]
    batching: Batching
    token_budget: int
    seats: int
    num_blocks: int
    block_size: int
    prefix_cache: bool
    rounds: int = 1


@dataclass(frozen=True, slots=True)
class ScheduleResult:
    """``answers[i]`` are the answers of the i-th request that arrived, one a choice."""

    answers: list[list[Answer]]
    steps: int
    preemptions: int


class Player:
    """One engine, on which loads are played one after the other."""

    def __init__(self, schedule: Schedule, runner: Runner, vocab_size: int) -> None:
        """The limits are those of ``schedule``; its order and rounds are for ``play``."""
        self.steps = 0
        self._heard: dict[int, Answer] = {}
        self._intake = Intake(_info(schedule, vocab_size))
        controls = Controls(
            batching=schedule.batching,
            token_budget=schedule.token_budget,
            max_sequences=schedule.seats,
        )
        pool = BlockPool(schedule.num_blocks, schedule.block_size)
        self._scheduler = Scheduler(pool, controls, (), prefix_cache=schedule.prefix_cache)
        self._engine = Engine(
            self._scheduler, runner, self._intake, lambda output: _hear(self._heard, output)
        )

    @property
    def preemptions(self) -> int:
        return self._engine.load.preemptions

    def play(self, members: Sequence[Request], at_step: Sequence[int]) -> list[list[Answer]]:
        """Run a load to its end; the answers of each member, one a choice.

        Raises:
            RuntimeError: a request was refused or did not end well, or the engine failed.
        """
        self._heard.clear()
        arrivals = sorted(range(len(members)), key=lambda i: at_step[i])
        step = 0
        while arrivals or self._intake.num_open:
            while arrivals and at_step[arrivals[0]] <= step:
                i = arrivals.pop(0)
                answer = self._intake.submit(_ORIGIN, Submission(i * _HANDLES, members[i]))
                if answer.refusal is not None:
                    raise RuntimeError(f"refused: {answer.detail}")
            self._engine.step()
            self._scheduler.check_integrity()
            step += 1
        self.steps += step
        for handle, told in self._heard.items():
            if told.finish in (FinishReason.FAILED, FinishReason.CANCELLED):
                raise RuntimeError(f"handle {handle} ended as {told.finish.name}")
        return [
            [self._heard[i * _HANDLES + choice] for choice in range(member.n)]
            for i, member in enumerate(members)
        ]


def play(
    requests: Sequence[Request], schedule: Schedule, runner: Runner, vocab_size: int
) -> ScheduleResult:
    """Run a schedule to its end, on an engine of its own. Raises as ``Player.play``."""
    player = Player(schedule, runner, vocab_size)
    members = [requests[index] for index in schedule.order]
    answers = [
        each for _ in range(schedule.rounds) for each in player.play(members, schedule.at_step)
    ]
    return ScheduleResult(answers, player.steps, player.preemptions)


def _hear(heard: dict[int, Answer], output: StepOutput) -> None:
    for delta in output.deltas.get(_ORIGIN, ()):
        answer = heard.setdefault(delta.handle, Answer())
        answer.tokens += delta.tokens
        answer.logprobs += delta.logprobs
        answer.prompt_logprobs += delta.prompt_logprobs
        answer.cached_tokens += delta.cached_tokens
        answer.finish = delta.finish


def _info(schedule: Schedule, vocab_size: int) -> ReplicaInfo:
    return ReplicaInfo(
        replica_id="exactness",
        model="exactness",
        vocab_size=vocab_size,
        max_sequence_tokens=schedule.num_blocks * schedule.block_size,
        max_sequences=schedule.seats,
        max_waiting=len(schedule.order) * _HANDLES,
        block_size=schedule.block_size,
        blocks_total=schedule.num_blocks,
    )
