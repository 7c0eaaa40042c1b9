from __future__ import annotations

from chairlift.evaluation.study_run import Ride
from chairlift.evaluation.study_use import Meter, use_of


def test_a_newcomer_gets_the_lowest_free_seat() -> None:
    meter = Meter(2, first_seat=4)
    meter.look(0.0, (7, 8), 0.5)
    meter.look(1.0, (8, 9), 1.0)
    meter.look(3.0, (), 0.0)
    assert sorted(meter.rides, key=lambda ride: ride.number) == [
        Ride(7, 4, 0.0, 1.0), Ride(8, 5, 0.0, 3.0), Ride(9, 4, 1.0, 3.0)
    ]  # fmt: skip
    meter.stepped(0.25, 2.0)
    use = use_of((meter, Meter(2)), 4.0, preemptions=1, recomputed=2)
    assert (use.seats, use.kv, use.budget) == (3 / 8, 2.5 / 8, 0.5 / 8)
    assert (use.steps, use.preemptions, use.recomputed) == (1, 1, 2)


def test_there_may_be_more_riders_than_seats_for_a_while() -> None:
    meter = Meter(1)
    meter.look(0.0, (1, 2), 0.0)
    meter.look(1.0, (), 0.0)
    assert {ride.seat for ride in meter.rides} == {0, 1}
