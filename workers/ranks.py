"""Every rank of a group runs the same loop, and here is what keeps the loops together.

Owns what the ranks tell each other besides the numbers of a forward pass: rank 0's intake hands
everything that it hands over to the others as well, and before a step is computed all ranks
compare what they are about to compute. It knows nothing of how the bytes travel
(``tensor_parallel``), and nothing of what is done when the ranks differ (``engine``).

    rank 0   Intake ─► LeadingIntake.drain ─┬─► its own loop
                                            └─share─► FollowerIntake.drain ─► theirs

The scheduler is a pure function of what came in and of the tokens, so equal loops reach equal
plans; the comparison is there for the day on which they do not.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from typing import Protocol

from chairlift.workers.drained_codec import pack_drained, unpack_drained
from chairlift.workers.intake import Drained, Intake
from chairlift.workers.rank_faults import RanksDiffer
from chairlift.workers.sequence import Runner, SequenceKey, StepPlan, StepResult

__all__ = [
    "AgreeingRunner",
    "FollowerIntake",
    "LeadingIntake",
    "Ranks",
    "plan_digest",
    "same_number",
]


class Ranks(Protocol):
    """The part of a group that this module uses; see ``tensor_parallel.Group``."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def share(self, message: bytes | None) -> bytes: ...

    def agree(self, digest: int) -> None: ...


def same_number(ranks: Ranks, number: int) -> int:
    """Rank 0's, on every rank."""
    return int.from_bytes(ranks.share(number.to_bytes(8) if ranks.rank == 0 else None))


class LeadingIntake:
    """Rank 0's ``Source``: its intake, whose news the other ranks get at the same time."""

    def __init__(self, intake: Intake, ranks: Ranks) -> None:
        self._ranks = ranks
        self._intake = intake
        self.wait = intake.wait
        self.end = intake.end
        self.open_keys = intake.open_keys
        self.close = intake.close
        self.hand_over = intake.hand_over
        self.stop = intake.stop

    def drain(self) -> Drained:
        """Take everything that has come in. Raises RankFault when the others cannot be told."""
        drained = self._intake.drain()
        self._ranks.share(pack_drained(drained))
        return drained


class FollowerIntake:
    """The ``Source`` of every other rank: what rank 0 has taken in.

    Its loop is told by rank 0's when all is handed over and when to stop; nobody waits for what
    becomes of its sequences.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._next: Drained | None = None

    def wait(self) -> None:
        """Sleep until rank 0 takes its next turn. Raises RankFault when there is none."""
        self._next = self._receive()

    def drain(self) -> Drained:
        """What rank 0 has drained. Raises RankFault when rank 0 or its word is lost."""
        drained, self._next = self._next, None
        return self._receive() if drained is None else drained

    def end(self, keys: Iterable[SequenceKey]) -> None:
        """Nobody waits for them here."""

    def open_keys(self) -> list[SequenceKey]:
        """None: those who wait ask rank 0."""
        return []

    def close(self) -> None:
        """Nothing comes in here but what rank 0 tells."""

    def hand_over(self) -> None:
        """Rank 0 says when."""

    def stop(self) -> None:
        """Rank 0 says when."""

    def _receive(self) -> Drained:
        message = self._ranks.share(None)
        try:
            return unpack_drained(message)
        except ValueError as error:
            raise RanksDiffer(f"rank 0 said what rank {self._ranks.rank} cannot read") from error


class AgreeingRunner:
    """A ``Runner`` that computes a step only when all ranks are about to compute the same one."""

    def __init__(self, runner: Runner, ranks: Ranks) -> None:
        self._runner = runner
        self._ranks = ranks

    def advance(self, plan: StepPlan) -> StepResult:
        """As the runner; raises RankFault, before anything is computed, when plans differ."""
        self._ranks.agree(plan_digest(plan))
        return self._runner.advance(plan)


def plan_digest(plan: StepPlan) -> int:
    """64 bits of all that a step depends on: who runs, from where to where, and in which blocks.

    A sequence is named by its arrival. Its last token stands for the samples of the step before:
    ranks that sampled differently differ here at the latest. While it decodes, its last block
    stands for its table, which grew by one block a time; a prompt may have found many at once.
    """
    slices = plan.slices
    sequences = [piece.sequence for piece in slices]
    numbers = array("Q", [len(slices), len(plan.preempted)])
    numbers.extend([each.arrival for each in sequences])
    numbers.extend([piece.start for piece in slices])
    numbers.extend([piece.count << 1 | piece.samples for piece in slices])
    numbers.extend([each.tokens[-1] << 32 | len(each.blocks) for each in sequences])
    numbers.extend([each.blocks[-1] for each in sequences])
    for piece in slices:
        if piece.count > 1:
            numbers.extend(piece.sequence.blocks)
    numbers.extend([each.arrival for each in plan.preempted])
    return int.from_bytes(hashlib.blake2b(numbers, digest_size=8).digest())
