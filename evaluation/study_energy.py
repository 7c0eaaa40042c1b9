"""What the processors took, where the system tells: RAPL's counters, in joules.

Owns their reading. They count whole packages, with all that else runs on them, and begin anew when
they are full: a run must not take longer than one turn of them, which is ten minutes or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["EnergyMeter"]

_FOLDER = Path("/sys/class/powercap")


@dataclass(frozen=True, slots=True)
class _Counter:
    file: Path
    begin_uj: int
    turn_uj: int

    def used_uj(self) -> int:
        used = _number(self.file) - self.begin_uj
        return used if used >= 0 else used + self.turn_uj


class EnergyMeter:
    """Counts from when it is made."""

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._counters: list[_Counter] = []
        for zone in sorted(folder.glob("intel-rapl:*")):
            if zone.name.count(":") > 1:
                continue  # a part of a package, which counts it, too
            file = zone / "energy_uj"
            try:
                counter = _Counter(file, _number(file), _number(zone / "max_energy_range_uj"))
            except (OSError, ValueError):
                continue  # not there, or for root alone
            self._counters.append(counter)

    def joules(self) -> float | None:
        """Since then; None where there is nothing to read."""
        if not self._counters:
            return None
        try:
            return sum(each.used_uj() for each in self._counters) / 1e6
        except (OSError, ValueError):
            return None


def _number(file: Path) -> int:
    return int(file.read_text("ascii"))
