"""Quantiles of many numbers within one percent, in bounded memory, that can be added up.

Owns the bins: each spans numbers that differ by two percent at most, and stands for their middle.
Merging two sketches gives the sketch of all numbers of both, whatever the order, so quantiles of a
cluster are as good as those of one process. The idea is DDSketch (Masson, Rim and Lee, 2019).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["ACCURACY", "Sketch"]

ACCURACY = 0.01
"""A quantile is within this share of a number that was really there."""

_GAMMA = (1 + ACCURACY) / (1 - ACCURACY)
_PER_LOG = 1 / math.log(_GAMMA)
_LEAST, _MOST = 1e-6, 1e6
"""What is smaller or larger counts as these: about 1,400 bins at the most."""


class Sketch:
    """Numbers from a millionth to a million; zero and less count as the smallest."""

    __slots__ = ("_bins", "count", "total")

    def __init__(self) -> None:
        self._bins: dict[int, float] = {}
        self.count = 0.0
        self.total = 0.0

    def add(self, value: float, weight: float = 1) -> None:
        """Take note of a number, ``weight`` times."""
        clipped = _LEAST if not value > _LEAST else _MOST if value > _MOST else value
        index = math.ceil(math.log(clipped) * _PER_LOG)
        self._bins[index] = self._bins.get(index, 0) + weight
        self.count += weight
        self.total += value * weight

    def merge(self, other: Sketch) -> None:
        """Take over all that the other has noted; it stays as it is."""
        bins = self._bins
        for index, weight in other._bins.items():
            bins[index] = bins.get(index, 0) + weight
        self.count += other.count
        self.total += other.total

    def quantile(self, share: float) -> float | None:
        """The number below which that share of all lies; None where there are none."""
        if not self.count:
            return None
        left = share * (self.count - 1)
        for index in sorted(self._bins):
            left -= self._bins[index]
            if left < 0:
                return 2 * _GAMMA**index / (_GAMMA + 1)
        return 2 * _GAMMA ** max(self._bins) / (_GAMMA + 1)

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def copy(self) -> Sketch:
        copied = Sketch()
        copied.merge(self)
        return copied

    def __getstate__(self) -> tuple[Mapping[int, float], float, float]:
        return self._bins, self.count, self.total

    def __setstate__(self, state: tuple[dict[int, float], float, float]) -> None:
        self._bins, self.count, self.total = state

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and self.__getstate__() == other.__getstate__()

    __hash__ = None  # type: ignore[assignment]  # it changes
