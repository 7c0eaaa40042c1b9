"""What else ran on the machine during a run: what is timed beside other work says little.

Owns the reading of the processors' time; judges nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

__all__ = ["OthersMeter", "family_s"]

_STAT = Path("/proc/stat")
_IDLE = frozenset((3, 4))
"""Columns of its first line that are not work: idle, and idle while something is read."""
_COLUMNS = 8
"""User, nice, system, idle, wait, two of interrupts, stolen; guests are in the first two."""


class OthersMeter:
    """Counts from when it is made.

    Args:
        own_s: processor seconds of the study itself, from whatever beginning.
        stat: what the kernel tells of all processors.
    """

    def __init__(self, own_s: Callable[[], float] = time.process_time, stat: Path = _STAT) -> None:
        self._own_s, self._stat = own_s, stat
        self._begin = self._read()

    def share(self) -> float | None:
        """Of all processors' time since then that others had; None where the system tells none."""
        now = self._read()
        if now is None or self._begin is None:
            return None
        busy, whole, own = (after - before for before, after in zip(self._begin, now, strict=True))
        return max(0.0, busy - own) / whole if whole > 0 else None

    def _read(self) -> tuple[float, float, float] | None:
        """Seconds that all processors worked, seconds that there were, and the study's own."""
        try:
            line = self._stat.read_text("ascii").partition("\n")[0]
            ticks = [int(each) for each in line.split()[1 : _COLUMNS + 1]]
        except (OSError, ValueError):
            return None
        tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
        busy = sum(each for place, each in enumerate(ticks) if place not in _IDLE)
        return busy * tick_s, sum(ticks) * tick_s, self._own_s()


def family_s() -> float:
    """Processor seconds of this process and of all that it has started and that still runs."""
    here = psutil.Process()
    found = 0.0
    for process in (here, *here.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:  # it has ended meanwhile
            continue
        found += times.user + times.system
    return found
