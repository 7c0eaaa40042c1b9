from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from chairlift.evaluation.study_energy import EnergyMeter, gpu_counters


def counter(folder: Path, name: str, used_uj: int, turn_uj: int = 10_000_000) -> None:
    zone = folder / name
    zone.mkdir(exist_ok=True)
    (zone / "energy_uj").write_text(f"{used_uj}\n")
    (zone / "max_energy_range_uj").write_text(f"{turn_uj}\n")


def test_packages_are_added_up_and_begin_anew_when_they_are_full(tmp_path: Path) -> None:
    counter(tmp_path, "intel-rapl:0", 1_000_000)
    counter(tmp_path, "intel-rapl:1", 9_000_000)
    counter(tmp_path, "intel-rapl:0:0", 500_000)
    meter = EnergyMeter(tmp_path)
    counter(tmp_path, "intel-rapl:0", 4_000_000)
    counter(tmp_path, "intel-rapl:1", 500_000)
    counter(tmp_path, "intel-rapl:0:0", 900_000)
    assert meter.joules() == 3.0 + 1.5


def test_gpus_count_from_when_the_meter_was_made(tmp_path: Path) -> None:
    told = [1000.0, 50.0]
    meter = EnergyMeter(tmp_path, lambda: [lambda: told[0], lambda: told[1]])
    told[:] = [1030.0, 62.0]
    assert meter.joules() == 42.0


def test_nothing_is_told_where_there_is_nothing_to_read(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path, list).joules() is None
    assert EnergyMeter(tmp_path / "none", list).joules() is None
    (tmp_path / "intel-rapl:0").mkdir()
    assert EnergyMeter(tmp_path, list).joules() is None


def test_a_counter_that_fails_tells_nothing_of_the_whole(tmp_path: Path) -> None:
    counter(tmp_path, "intel-rapl:0", 1_000_000)

    def broken() -> float:
        raise OSError("gone")

    assert EnergyMeter(tmp_path, lambda: [broken]).joules() is None


def test_a_library_without_a_driver_is_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def no_driver() -> None:
        raise NVMLError

    library = types.SimpleNamespace(NVMLError=NVMLError, nvmlInit=no_driver)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    assert gpu_counters() == []
