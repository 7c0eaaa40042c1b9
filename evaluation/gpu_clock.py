"""Time on a device: how long calls take there, and how long a section may.

Owns the measure: calls one right behind the other between two moments at which the device has
nothing to do, several such groups, their median and range.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

__all__ = ["Clock", "Deadline", "Times"]

_WARM_UPS = 3
_GROUP_S = 0.01
_GROUPS = 7
_LONGEST_GROUP = 1000


@dataclass(frozen=True, slots=True)
class Deadline:
    """When to stop, on the clock of ``time.perf_counter``."""

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.perf_counter() + seconds)

    @property
    def left(self) -> float:
        """Seconds; below 0 when it has passed."""
        return self.at - time.perf_counter()

    def within(self, seconds: float) -> Deadline:
        """This one, or an earlier one."""
        return Deadline(min(self.at, time.perf_counter() + seconds))


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one call: over groups of calls, the median, the least and the most."""

    median: float
    least: float
    most: float

    @property
    def milliseconds(self) -> dict[str, float]:
        """For a table."""
        return {"ms": 1e3 * self.median, "from ms": 1e3 * self.least, "to ms": 1e3 * self.most}


@dataclass(frozen=True, slots=True)
class Clock:
    """Times calls on a device.

    Attributes:
        device: where they compute.
        groups: of calls, at most; fewer when the deadline comes first, and never none.
    """

    device: torch.device
    groups: int = _GROUPS

    def time(self, call: Callable[[], object], deadline: Deadline) -> Times:
        """Median and range; the first calls, which may compile something, do not count."""
        for _ in range(_WARM_UPS):
            one = self._group(call, 1)
            if deadline.left < one:
                break
        calls = min(_LONGEST_GROUP, max(1, round(_GROUP_S / max(one, 1e-9))))
        seconds = [self._group(call, calls)]
        while len(seconds) < self.groups and deadline.left > calls * seconds[-1]:
            seconds.append(self._group(call, calls))
        return Times(median(seconds), min(seconds), max(seconds))

    def _group(self, call: Callable[[], object], calls: int) -> float:
        self._wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        self._wait()
        return (time.perf_counter() - start) / calls

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
