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
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Protocol

from chairlift.cluster.protocol import FinishReason, Priority, SamplingParams, TokenLogprobs
from chairlift.workers.decisions import SequenceKey, TurnedDown

__all__ = [
    "NO_TOKEN",
    "Admission",
    "Runner",
    "Sequence",
    "SequenceKey",
    "Slice",
    "Status",
    "StepPlan",
    "StepResult",
]


NO_TOKEN = 2**32 - 1
"""In place of a token, where none could be chosen: the sequence fails."""


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
        tokens: prompt, then output; it may come with output, which another replica has told.
        num_computed: leading tokens whose K and V are in the cache.
        num_reached: as many as were in it before the sequence was preempted; what it computes of
            them it computes again.
        blocks: block table, one entry for each started block of the computed and planned tokens.
        cache_salt: part of the name of every cached block that it reads or fills.
        digests: names of its leading full blocks, as far as the prefix cache has asked for them.
        num_cached: prompt tokens that it found in the prefix cache when it was first admitted.
        prompt_logprobs: gathered over the steps until the first output token is sampled.
        priority, weight: as ``protocol.Request`` has them.
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
    num_reached: int = 0
    blocks: list[int] = field(default_factory=list)
    status: Status = Status.WAITING
    finish: FinishReason | None = None
    preemptions: int = 0
    cache_salt: str = ""
    digests: list[bytes] = field(default_factory=list)
    num_cached: int = 0
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    priority: Priority = Priority.STANDARD
    weight: float = 1.0

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
    def resumes(self) -> bool:
        """Whether it ran before, here or elsewhere."""
        return self.preemptions > 0 or len(self.tokens) > self.num_prompt

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
    """The active tokens of one step, in the order in which rows stand in the batch.

    Attributes:
        slices: what runs.
        preempted: who lost seat and blocks to an older one, in this order.
        turned_down: running sequences that got no slice, one entry for each reason.
    """

    slices: tuple[Slice, ...]
    preempted: tuple[Sequence, ...] = ()
    turned_down: tuple[TurnedDown, ...] = ()

    @property
    def num_tokens(self) -> int:
        return sum(piece.count for piece in self.slices)

    @property
    def kv_read(self) -> int:
        """Positions of the KV cache that attention reads, over all slices."""
        return sum([piece.start + piece.count for piece in self.slices])


@dataclass(frozen=True, slots=True)
class Admission:
    """What ``refill`` decided.

    Attributes:
        admitted: who got a seat, in this order.
        turned_down: the first one that still waits, and what stopped the admissions.
    """

    admitted: tuple[Sequence, ...] = ()
    turned_down: tuple[TurnedDown, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step brought.

    Attributes:
        tokens: one for each slice that samples, in the order of the plan; ``NO_TOKEN`` for who
            cannot have one.
        logprobs: by index into ``tokens``, for the sequences that asked for them.
        prompt_logprobs: by index into the plan's slices, for the sequences that asked for them
            and have no output yet: one for each prompt token that a row of the slice predicts, so
            for the tokens ``start + 1 … start + count`` as far as they are known.
    """

    tokens: Seq[int]
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, tuple[TokenLogprobs, ...]] = field(default_factory=dict)


class Runner(Protocol):
    """Computes a step: one forward pass, one sampling.

    Writes K and V of every planned token to its sequence's blocks and returns the sampled
    tokens. The token at output position ``i`` is a function of the sequence's tokens before it
    and of (seed, choice, i), whatever else is in the plan.
    """

    def advance(self, plan: StepPlan) -> StepResult: ...
