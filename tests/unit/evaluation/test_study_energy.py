from __future__ import annotations

from pathlib import Path

from chairlift.evaluation.study_energy import EnergyMeter


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


def test_nothing_is_told_where_there_is_nothing_to_read(tmp_path: Path) -> None:
    assert EnergyMeter(tmp_path).joules() is None
    assert EnergyMeter(tmp_path / "none").joules() is None
    (tmp_path / "intel-rapl:0").mkdir()
    assert EnergyMeter(tmp_path).joules() is None
