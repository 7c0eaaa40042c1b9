"""What serve does for the Guard: once for each time that a rung is entered."""

from typing import Any

import pytest

from chairlift.cluster.guard_state import Rung
from chairlift.deployments.follow_guard import Follower, LastGood, Wish


def view(rung: Rung, num_open: int = 0, mode: str = "act") -> dict[str, Any]:
    return {"mode": mode, "rung_number": int(rung), "open": num_open}


def normal_for(good: LastGood[str], seconds: int, since: float = 0.0) -> None:
    for second in range(seconds + 1):
        good.seen(Rung.NORMAL, since + second)


def test_a_minute_on_normal_is_doing_well():
    good = LastGood("first")
    normal_for(good, 60)
    good.applied("second")
    assert good.take() == "first"


@pytest.mark.parametrize("rung", [Rung.NO_SPECULATION, None])
def test_a_minute_with_a_break_is_none(rung: Rung | None):
    good = LastGood("first")
    normal_for(good, 59)
    good.seen(rung, 60.0)
    normal_for(good, 59, since=61.0)
    good.applied("second")
    assert good.take() is None


def test_a_minute_counts_from_when_it_was_applied():
    good = LastGood("first")
    normal_for(good, 60)
    good.applied("second")
    normal_for(good, 59, since=61.0)
    good.applied("third")
    assert good.take() == "first"


def test_what_has_to_be_left_did_not_do_well_after_all():
    good = LastGood("first")
    normal_for(good, 60)
    good.applied("second")
    normal_for(good, 60, since=100.0)
    assert good.take() == "first"
    good.applied("first")
    assert good.take() is None, "the second one was left, and the first one is there"


def test_without_another_one_there_is_none():
    good = LastGood("first")
    assert good.take() is None
    normal_for(good, 60)
    assert good.take() is None


def test_only_the_newest_are_kept():
    good = LastGood(0)
    for number in range(1, 50):
        for second in range(61):
            good.seen(Rung.NORMAL, 100.0 * number + second)
        good.applied(number)
    assert good.take() == 48
    assert len(good._good) <= 4


def test_rolling_back_is_wished_once_for_each_time_it_is_entered():
    follower, wishes = Follower(), []
    for rung in (0, 8, 9, None, 9, 9, 8, 9, 0):
        seen = None if rung is None else view(Rung(rung))
        wishes.append(follower.look(seen, 0.0))
        assert follower.rung == rung
    assert wishes == [None, None, Wish.ROLL_BACK, *[None] * 4, Wish.ROLL_BACK, None]


def test_a_shadow_moves_nobody():
    follower = Follower()
    assert follower.look(view(Rung.ROLL_BACK, mode="shadow"), 0.0) is None
    assert follower.rung is None
    assert follower.look(view(Rung.STOP, mode="shadow"), 1000.0) is None
    assert follower.look({"mode": "off"}, 2000.0) is None


def test_it_stops_when_what_is_open_has_ended():
    follower = Follower()
    assert follower.look(view(Rung.STOP), 0.0) is None, "who was not told yet lets others in"
    assert follower.look(view(Rung.STOP, 5), 10.0) is None
    assert follower.look(None, 11.0) is None
    assert follower.look(view(Rung.STOP), 12.0) is Wish.STOP


@pytest.mark.parametrize("seen", [view(Rung.STOP, 5), None])
def test_nothing_that_is_open_keeps_it_for_ever(seen: dict[str, Any] | None):
    follower = Follower()
    follower.look(view(Rung.STOP, 5), 0.0)
    assert follower.look(seen, 119.0) is None
    assert follower.look(seen, 121.0) is Wish.STOP


def test_a_stop_that_is_taken_back_is_forgotten():
    follower = Follower()
    follower.look(view(Rung.STOP), 0.0)
    follower.look(view(Rung.PAGE), 1.0)
    assert follower.look(view(Rung.STOP), 100.0) is None
