"""A plan in the making: who runs in the step, who does not and why, how many tokens are left.

Owns that account only; what stands in it is the scheduler's decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chairlift.workers.decisions import Reason, TurnedDown
from chairlift.workers.sequence import Sequence, Slice, Status, StepPlan

__all__ = ["Draft"]


@dataclass(slots=True)
class Draft:
    """The account of one step.

    Attributes:
        budget: tokens that are left.
        slices: who runs, in order.
        under_way: names of the blocks that unfinished prompts work on in this step.
        preempted, sharing, starved: who does not run: seat lost, waiting for a block that is
            under way, no tokens left.
    """

    budget: int
    slices: dict[Sequence, Slice] = field(default_factory=dict)
    under_way: set[bytes] = field(default_factory=set)
    preempted: list[Sequence] = field(default_factory=list)
    sharing: list[Sequence] = field(default_factory=list)
    starved: list[Sequence] = field(default_factory=list)

    def add(self, piece: Slice) -> None:
        self.slices[piece.sequence] = piece
        self.budget -= piece.count

    def drop(self, victim: Sequence) -> None:
        self.preempted.append(victim)
        if victim in self.slices:
            self.budget += self.slices.pop(victim).count

    def plan(self) -> StepPlan:
        sharing = [each for each in self.sharing if each.status is Status.RUNNING]
        passed_over = (
            (Reason.NO_BLOCKS, self.preempted),
            (Reason.SHARED_PREFIX, sharing),
            (Reason.BUDGET, self.starved),
        )
        turned_down = tuple(
            TurnedDown(sequences[0].key, reason, len(sequences))
            for reason, sequences in passed_over
            if sequences
        )
        return StepPlan(tuple(self.slices.values()), tuple(self.preempted), turned_down)
