"""What processors and GPUs took, where the system tells: RAPL's and NVML's counters, in joules.

Owns their reading. They count whole packages and devices, with all that else runs on them. Those of
processors begin anew when they are full: a run must not take longer than one turn of them, which is
ten minutes or more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["EnergyMeter", "gpu_counters"]

_FOLDER = Path("/sys/class/powercap")

Counter = Callable[[], float]
"""Joules, from whatever beginning; OSError or ValueError where it cannot be read."""


@dataclass(frozen=True, slots=True)
class _Package:
    """Of a processor; its joules begin with it."""

    file: Path
    begin_uj: int
    turn_uj: int

    def __call__(self) -> float:
        used = _number(self.file) - self.begin_uj
        return (used if used >= 0 else used + self.turn_uj) / 1e6


class EnergyMeter:
    """Counts from when it is made."""

    def __init__(
        self, folder: Path = _FOLDER, gpus: Callable[[], list[Counter]] | None = None
    ) -> None:
        self._counters = [*_packages(folder), *(gpus or gpu_counters)()]
        self._begin = self._read()

    def joules(self) -> float | None:
        """Since then; None where there is nothing to read."""
        now = self._read()
        return None if now is None or self._begin is None else now - self._begin

    def _read(self) -> float | None:
        if not self._counters:
            return None
        try:
            return sum(counter() for counter in self._counters)
        except (OSError, ValueError):
            return None


def gpu_counters() -> list[Counter]:
    """One for each NVIDIA GPU of the machine; none without the library (extra ``gpu``) or driver.

    NVML counts since the driver was loaded, in mJ, on devices since Volta.
    """
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
        devices = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError:
        return []

    def counter_of(device: object) -> Counter:
        def joules() -> float:
            try:
                return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(device)) / 1e3
            except pynvml.NVMLError as error:
                raise OSError(str(error)) from None

        return joules

    return [counter_of(device) for device in devices]


def _packages(folder: Path) -> list[Counter]:
    counters: list[Counter] = []
    for zone in sorted(folder.glob("intel-rapl:*")):
        if zone.name.count(":") > 1:
            continue  # a part of a package, which counts it, too
        file = zone / "energy_uj"
        try:
            counters.append(_Package(file, _number(file), _number(zone / "max_energy_range_uj")))
        except (OSError, ValueError):
            continue  # not there, or for root alone
    return counters


def _number(file: Path) -> int:
    return int(file.read_text("ascii"))
