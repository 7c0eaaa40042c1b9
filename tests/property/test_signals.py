"""The signals of a real recorder's reports, over traffic that comes by chance."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.cluster.guard_state import Signal
from support.seated_queue import TICK_S, SeatedQueue

SEATS, MEAN_S = 16, 1.0


@pytest.mark.parametrize("seed", range(8))
def test_a_steady_load_well_below_capacity_leaves_the_signals_calm(seed):
    """Four simulated minutes at 0.7 of capacity; a burst of a second must not be taken for more."""
    readings = SeatedQueue(0.7 * SEATS / MEAN_S, SEATS, MEAN_S, seed).readings(240)
    for each in readings[20:]:
        assert each[Signal.OFFERED_LOAD].value < 1.0
        assert each[Signal.CONTRADICTION].value < 0.15
        assert each[Signal.OLDEST_SLOPE].value < 0.5
        assert each[Signal.BURN_RATE].value < 1.0
        assert each[Signal.SLOW_STEPS].value == pytest.approx(1.0)
    assert set(readings[-1]) == set(Signal)
    beyond = [each[Signal.QUEUE_DELAY].value >= 0.25 for each in readings[20:]]
    assert not any(map(all, zip(beyond, beyond[1:], beyond[2:], strict=False))), "for two seconds"


def test_more_than_can_be_served_shows_within_seconds():
    queue = SeatedQueue(0.7 * SEATS / MEAN_S, SEATS, MEAN_S)
    calm = queue.readings(60)
    assert calm[-1][Signal.OFFERED_LOAD].value < 1.0
    queue.rate = 2.5 * SEATS / MEAN_S
    readings = queue.readings(30)
    first = {
        signal: next(n for n, each in enumerate(readings) if each[signal].value > limit)
        for signal, limit in (
            (Signal.OFFERED_LOAD, 1.0),
            (Signal.QUEUE_DELAY, 0.25),
            (Signal.OLDEST_SLOPE, 0.5),
            (Signal.BURN_RATE, 1.0),
        )
    }
    assert first[Signal.OFFERED_LOAD] <= 4
    assert first[Signal.QUEUE_DELAY] <= 6
    assert first[Signal.OLDEST_SLOPE] <= 10
    assert first[Signal.BURN_RATE] <= 20


def test_reports_of_a_replica_that_stand_still_contradict_what_is_open():
    queue = SeatedQueue(0.7 * SEATS / MEAN_S, SEATS, MEAN_S)
    queue.readings(30)
    queue.frozen = True
    queue.rate = 0.001
    readings = queue.readings(15)
    assert readings[-1][Signal.CONTRADICTION].value > 0.5
    assert readings[-1][Signal.CONTRADICTION].where == "r0"


@settings(max_examples=15, deadline=None)
@given(
    rate=st.floats(0.5, 60.0),
    seats=st.integers(1, 20),
    mean_s=st.floats(0.05, 3.0),
    seed=st.integers(0, 1000),
)
def test_time_spent_is_time_open_whatever_the_traffic(rate, seats, mean_s, seed):
    """Between any two reports; the one is added up by request, the other by looking now and then.

    Each request's begin and end is seen up to a look too late.
    """
    told = []
    for report in SeatedQueue(rate, seats, mean_s, seed).reports(20):
        tallies = list(report.totals.values())
        spent_s = sum(tally.spent_s for tally in tallies) + (report.open_age_s or 0.0)
        told.append((spent_s, report.open_s, sum(each.started + each.ended for each in tallies)))
    for first, last in ((told[0], told[-1]), (told[7], told[13])):
        spent_s, open_s, events = (b - a for a, b in zip(first, last, strict=True))
        assert abs(spent_s - open_s) <= TICK_S * events + 1e-6
