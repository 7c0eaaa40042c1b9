import pickle

import pytest

from chairlift.cluster.history import Windows, bounded
from chairlift.cluster.telemetry import OTHERS, Tally
from chairlift.cluster.windows import SPANS
from support.reports import T0, series, served, started, tenants


def counted(*seconds: int, most: int = 32) -> Windows:
    windows = Windows(most)
    for second in seconds:
        windows.add(second, tenants(a=1))
    return windows


@pytest.mark.parametrize(("span_s", "exact"), [(10, 10), (60, 60), (300, 300), (3600, 3600)])
def test_a_window_holds_its_seconds_and_no_others(span_s: int, exact: int):
    windows = counted(*range(T0, T0 + 4000))
    now = T0 + 3960  # where a minute begins
    assert windows.since_when(now, span_s) == now - exact
    if span_s > 60:  # seconds are kept for little longer than the shorter ones reach
        assert started(windows.over(now, span_s)) == exact
    now = T0 + 4000
    assert started(windows.over(now, span_s)) == now - windows.since_when(now, span_s)


@pytest.mark.parametrize(("span_s", "resolution"), [(10, 1), (60, 1), (300, 10), (3600, 60)])
def test_a_window_is_shorter_than_asked_for_by_less_than_its_resolution(
    span_s: int, resolution: int
):
    for now in range(T0, T0 + 61):
        missing = Windows.since_when(now, span_s) - (now - span_s)
        assert 0 <= missing < resolution


def test_a_second_counts_once():
    windows = counted(T0, T0 + 1, T0, T0 + 1)
    for span_s in SPANS.values():
        assert started(windows.over(T0 + 2, span_s)) == 2


def test_a_second_may_come_late_but_not_too_late():
    windows = counted(T0 + 100, T0 + 50, T0 + 25)
    for span_s in (300, 3600):
        assert started(windows.over(T0 + 101, span_s)) == 2


def test_what_is_returned_may_be_changed():
    windows = counted(T0)
    windows.over(T0 + 1, 10)[series()].merge(served(1))
    assert started(windows.over(T0 + 1, 10)) == 1


def test_buckets_do_not_pile_up():
    windows = counted(*range(T0, T0 + 8000))
    history = windows.since(-1)
    assert len(history.seconds) <= 75
    assert len(history.tens) <= 40
    assert len(history.minutes) <= 63
    assert len(pickle.dumps(windows)) < 500_000


@pytest.mark.parametrize("length", [1, 60, 75, 76, 399, 401, 1000, 3000])
@pytest.mark.parametrize("offset", [0, 7, 59])
def test_a_whole_history_gives_the_same_windows(length: int, offset: int):
    sender = counted(*range(T0 + offset, T0 + offset + length))
    receiver = Windows()
    receiver.load(sender.since(-1))
    assert receiver.last == sender.last
    for now in (sender.last + 1, sender.last + 2):
        for span_s in SPANS.values():
            assert receiver.over(now, span_s) == sender.over(now, span_s)


def test_one_who_is_up_to_date_is_told_what_is_new():
    windows = counted(*range(T0, T0 + 1000))
    history = windows.since(T0 + 997)
    assert list(history.seconds) == [T0 + 998, T0 + 999]
    assert (history.tens, history.minutes) == ({}, {})


def test_one_who_heard_nothing_for_minutes_hears_nothing_twice():
    sender = counted(*range(T0, T0 + 1000))
    receiver = Windows()
    receiver.load(sender.since(-1))
    for second in range(T0 + 1000, T0 + 1300):
        sender.add(second, tenants(a=1))
    receiver.load(sender.since(receiver.last))
    missing = started(sender.over(T0 + 1300, 3600)) - started(receiver.over(T0 + 1300, 3600))
    assert 0 <= missing < 10
    assert receiver.over(T0 + 1300, 60) == sender.over(T0 + 1300, 60)


def test_the_best_served_are_told_apart_and_the_sum_stays():
    bucket = tenants(a=1, b=5, c=5, d=7) | {series("a", "best_effort"): served(1)}
    kept = bounded(bucket, 2)
    assert {each.tenant for each in kept} == {"b", "d", OTHERS}
    assert kept[series(OTHERS)].service == 6
    assert kept[series(OTHERS, "best_effort")].service == 1
    assert started(kept) == started(bucket)
    assert bucket[series("a")].service == 1


def test_others_take_nobodys_place():
    once = bounded(tenants(a=1, b=2, c=3, d=4), 2)
    assert bounded(once, 2) == once
    twice = bounded(once | tenants(e=9), 2)
    assert {each.tenant for each in twice} == {"d", "e", OTHERS}
    assert started(twice) == 5


def test_few_tenants_are_all_told_apart():
    bucket = tenants(a=1, b=2)
    assert bounded(bucket, 2) == bucket


def test_a_tally_of_nothing_is_nothing():
    merged = Tally()
    merged.merge(Tally())
    assert merged == Tally()
