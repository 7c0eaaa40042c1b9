"""One choice being decoded, and what a step does with it.

Owns the state of a sequence and the shapes that pass between scheduler, runner and engine.
Imports no torch. Who changes what: the scheduler owns ``status``, ``blocks`` and
``num_computed``; ``tokens`` grows only when a step's result is taken in (``scheduler.retire``).

    tokens   [ p p p p p p p p | o o o ]      p: prompt, o: output
              └── num_computed ──┘  ▲
                                    └ num_tokens = len(tokens)

A step that covers the sequence up to ``num_tokens`` samples its next token; that is all that
tells "prefill" from "decode".
"""

from __future__ import annotations

import enum
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

from chairlift.cluster.protocol import FinishReason, SamplingParams

__all__ = ["Runner", "Sequence", "SequenceKey", "Slice", "Status", "StepPlan", "StepResult"]


@dataclass(frozen=True, slots=True, order=True)
class SequenceKey:
    """Names a sequence within one engine: the stream that asked for it, and its handle there."""

    origin: int
    handle: int


class Status(enum.Enum):
    """WAITING ⇄ RUNNING → FINISHED; a preempted sequence is WAITING again."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice of one request.

    Attributes:
        choice: index among the request's choices; keys the random numbers with the seed.
        arrival: order of arrival in this engine; unique.
        tokens: prompt, then output.
        num_computed: leading tokens whose K and V are in the cache.
        blocks: block table, one entry for each started block of the computed and planned tokens.
    """

    key: SequenceKey
    request_id: str
    tenant: str
    choice: int
    sampling: SamplingParams
    arrival: int
    tokens: list[int]
    num_prompt: int
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    status: Status = Status.WAITING
    finish: FinishReason | None = None
    preemptions: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens that are known but not yet computed; 1 while decoding."""
        return len(self.tokens) - self.num_computed

    @property
    def max_total(self) -> int:
        """Prompt plus output at most."""
        return self.num_prompt + self.sampling.max_tokens


@dataclass(frozen=True, slots=True)
class Slice:
    """The tokens ``start … start + count - 1`` of one sequence, to be computed in one step."""

    sequence: Sequence
    start: int
    count: int
    samples: bool
    """True when the slice reaches the last known token, so that the step samples the next one."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The active tokens of one step, in the order in which rows stand in the batch."""

    slices: tuple[Slice, ...]

    @property
    def num_tokens(self) -> int:
        return sum(piece.count for piece in self.slices)


@dataclass(frozen=True, slots=True)
class StepResult:
    """One token for each slice that samples, in the order of the plan."""

    tokens: Seq[int]


class Runner(Protocol):
    """Computes a step: one forward pass, one sampling.

    Writes K and V of every planned token to its sequence's blocks and returns the sampled
    tokens. The token at output position ``i`` is a function of the sequence's tokens before it
    and of (seed, choice, i), whatever else is in the plan.
    """

    def advance(self, plan: StepPlan) -> StepResult: ...
