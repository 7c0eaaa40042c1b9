"""How long steps take that do nothing but decode.

Owns the note of when each step began and of what it was. What computes the step, and how many
sequences there should be, is its users' matter.
"""

from __future__ import annotations

import time
from itertools import pairwise
from statistics import median

from chairlift.workers.sequence import StepPlan

__all__ = ["StepTimes"]


class StepTimes:
    """Told of each step as it begins."""

    def __init__(self) -> None:
        self._begun: list[tuple[float, int, int]] = []

    def begin(self, plan: StepPlan) -> None:
        self._begun.append((time.perf_counter(), len(plan.slices), plan.num_tokens))

    def decode_s(self, sequences: int) -> float | None:
        """The median time from one step to the next while that many decode and nothing else."""
        times = [
            later - earlier
            for (earlier, *before), (later, *after) in pairwise(self._begun)
            if before == after == [sequences, sequences]
        ]
        return median(times) if times else None
