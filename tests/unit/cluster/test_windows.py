import pickle
import sys

import pytest

from chairlift.cluster.telemetry import OTHERS, Bucket, Tally
from chairlift.cluster.windows import MAX_DEPARTED, SPANS, Fold, Windows, bounded
from support.reports import T0, Router, series, served, started, tenants

LATER = 2
"""Seconds after which a second has been told, and counts."""


def counted(*seconds: int, most: int = 32) -> Windows:
    windows = Windows(most)
    for second in seconds:
        windows.add(second, tenants(a=1))
    return windows


def all_windows(fold: Fold, now: int) -> dict[int, Bucket]:
    return {span_s: fold.window(span_s, now).bucket for span_s in SPANS.values()}


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


def test_routers_are_added_up():
    fold, one, other = Fold(), Router("one"), Router("other")
    one.count(T0, tenants(a=1, b=2))
    other.count(T0, tenants(b=3))
    assert fold.put(one.report(), T0) == T0
    assert fold.put(other.report(), T0) == T0
    for span_s in SPANS.values():
        bucket = fold.window(span_s, T0 + LATER).bucket
        assert {key.tenant: tally.service for key, tally in bucket.items()} == {"a": 1, "b": 5}
    assert fold.totals() == fold.window(10, T0 + LATER).bucket


def test_who_waits_at_two_routers_waits_no_longer_for_that():
    fold = Fold()
    for name, waited_s in (("one", 0.75), ("other", 0.5)):
        router = Router(name)
        router.count(T0, {series(): served(backlogged_s=waited_s)})
        fold.put(router.report(), T0)
    assert fold.window(10, T0 + LATER).backlogged_s == {"a": 0.75}


def test_reports_that_come_twice_late_or_never_change_nothing():
    smooth, rough, router = Fold(), Fold(), Router("one")
    known, rough_known, late = -1, -1, None
    for second in range(T0, T0 + 200):
        router.count(second, tenants(a=second % 7))
        known = smooth.put(router.report(known), second)
        if second % 5 == 0:
            late = router.report(rough_known)
            continue  # lost, for now
        report = router.report(rough_known)
        rough_known = rough.put(report, second)
        assert rough.put(report, second) == rough_known
        if late is not None:
            assert rough.put(late, second) == rough_known
    assert rough_known == known == T0 + 199
    assert all_windows(rough, T0 + 201) == all_windows(smooth, T0 + 201)
    assert rough.totals() == smooth.totals()


def test_a_hub_that_starts_anew_has_all_after_one_report_of_each_router():
    routers = [Router("one"), Router("other")]
    before, known = Fold(), dict.fromkeys(["one", "other"], -1)
    for second in range(T0, T0 + 3000, 3):
        for number, router in enumerate(routers):
            router.count(second, tenants(a=1, b=number))
            known[router.router_id] = before.put(router.report(known[router.router_id]), second)
    now = T0 + 3000
    anew = Fold()
    for router in routers:
        assert anew.put(router.report(known[router.router_id]), now) == -1
        assert anew.put(router.report(-1), now) == known[router.router_id]
    assert all_windows(anew, now) == all_windows(before, now)
    assert anew.totals() == before.totals()


def test_a_router_that_joins_shows_at_once():
    fold, first, second = Fold(), Router("first"), Router("second")
    first.count(T0, tenants(a=1))
    fold.put(first.report(), T0)
    assert started(fold.window(3600, T0 + LATER).bucket) == 1
    second.count(T0, tenants(a=1))
    fold.put(second.report(), T0)
    assert started(fold.window(3600, T0 + LATER).bucket) == 2


def test_of_a_router_that_departed_the_past_counts_and_the_present_does_not():
    fold, router = Fold(expire_s=10), Router("one")
    router.count(T0, {series(): served(started=3, finished=1)})
    router.queued = {"a": 2}
    fold.put(router.report(), T0)
    assert [report.queued for report, _ in fold.present(T0 + 10)] == [{"a": 2}]
    assert fold.lost(T0 + 10) == 0
    assert fold.present(T0 + 11) == []
    assert fold.lost(T0 + 11) == 2
    assert started(fold.window(60, T0 + 11).bucket) == 3
    assert started(fold.totals()) == 3


def test_a_router_that_comes_back_is_not_counted_twice():
    fold, router = Fold(expire_s=10), Router("one")
    router.count(T0, tenants(a=1))
    known = fold.put(router.report(), T0)
    fold.put(Router("other").report(), T0 + 60)
    assert fold.put(router.report(known), T0 + 60) == known
    assert started(fold.window(300, T0 + 61).bucket) == started(fold.totals()) == 1


def test_what_routers_did_that_come_and_go_is_kept_added_up():
    fold = Fold(expire_s=10)
    for number in range(5 * MAX_DEPARTED):
        router = Router(f"r{number}")
        router.count(T0 + 20 * number, {series(): served(started=2, finished=1)})
        fold.put(router.report(), T0 + 20 * number)
    now = T0 + 20 * (5 * MAX_DEPARTED - 1) + LATER
    assert started(fold.totals()) == started(fold.window(3600, now).bucket) == 10 * MAX_DEPARTED
    assert fold.lost(now) == 5 * MAX_DEPARTED - 1
    assert len(fold.present(now)) == 1


def test_memory_is_bounded_whatever_the_number_of_tenants_and_of_routers_gone():
    fold = Fold(most=8)
    size = []
    for number in range(60):
        router = Router(f"r{number}", most=8)
        names = [f"t{number}-{each}" for each in range(10_000 if number in (0, 59) else 300)]
        second = T0 + 20 * number
        router.count(second, {series(name): served() for name in names})
        router.queued = dict.fromkeys(names, 1)
        router.oldest_s = dict.fromkeys(names, 3.0)
        fold.put(router.report(), second)
        size.append(len(pickle.dumps(fold)))
    assert size[-1] < 1.3 * size[30]
    assert size[-1] < 400_000
    now = second + LATER
    assert len(fold.totals()) == 9
    assert len(fold.window(10, now).bucket) == 9
    assert started(fold.window(10, now).bucket) == 10_000
    assert started(fold.totals()) == 20_000 + 58 * 300
    (report, _) = fold.present(now)[0]
    assert len(report.queued) == len(report.oldest_s) == 9
    assert sum(report.queued.values()) == 10_000
    assert len(fold.weights()) < 9 * (MAX_DEPARTED + 2)
    assert sys.getsizeof(fold.weights()) < 10_000


def test_a_tally_of_nothing_is_nothing():
    merged = Tally()
    merged.merge(Tally())
    assert merged == Tally()
