import os
from pathlib import Path

import pytest

from chairlift.evaluation.study_others import OthersMeter, family_s

TICKS = os.sysconf("SC_CLK_TCK")


def tell(stat: Path, *seconds: int) -> None:
    """User, nice, system, idle, wait, interrupts, soft ones, stolen."""
    line = " ".join(str(each * TICKS) for each in seconds)
    stat.write_text(f"cpu  {line} 77 88\ncpu0 1 2 3\n")


def test_what_is_not_its_own_is_of_others(tmp_path: Path) -> None:
    stat, own = tmp_path / "stat", [10.0]
    tell(stat, 100, 0, 20, 1000, 50, 0, 0, 0)
    meter = OthersMeter(lambda: own[0], stat)
    tell(stat, 160, 5, 30, 1010, 60, 1, 2, 2)
    own[0] = 70.0
    assert meter.share() == pytest.approx((80 - 60) / 100)


def test_a_machine_that_is_its_own_has_no_others(tmp_path: Path) -> None:
    stat, own = tmp_path / "stat", [0.0]
    tell(stat, 0, 0, 0, 0, 0, 0, 0, 0)
    meter = OthersMeter(lambda: own[0], stat)
    tell(stat, 9, 0, 0, 1, 0, 0, 0, 0)
    own[0] = 9.5
    assert meter.share() == 0.0


@pytest.mark.parametrize("content", [None, "", "cpu a b\n"])
def test_a_system_that_tells_nothing_is_believed(tmp_path: Path, content: str | None) -> None:
    stat = tmp_path / "stat"
    if content is not None:
        stat.write_text(content)
    assert OthersMeter(lambda: 0.0, stat).share() is None


def test_a_family_has_worked_at_least_as_much_as_its_head() -> None:
    times = os.times()
    assert family_s() >= times.user + times.system
