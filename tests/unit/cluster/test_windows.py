import pickle
import sys

from chairlift.cluster.telemetry import Bucket, Failure
from chairlift.cluster.windows import MAX_DEPARTED, SPANS, Flow, Fold
from support.reports import T0, Router, series, served, started, tenants

LATER = 2
"""Seconds after which a second has been told, and counts."""


def all_windows(fold: Fold, now: int) -> dict[int, Bucket]:
    return {span_s: fold.window(span_s, now).bucket for span_s in SPANS.values()}


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


def test_the_newest_second_that_all_have_told_is_known():
    fold, one, other = Fold(), Router("one"), Router("other")
    assert fold.told(T0 + 0.5) == T0 - 1
    for router, last in ((one, T0 + 4), (other, T0 + 3)):
        for second in range(T0, last + 1):
            router.count(second, tenants(a=1))
        fold.put(router.report(), T0 + 5)
    assert fold.told(T0 + 5) == T0 + 4
    assert sum(tally.started for _, tally in fold.tallies(T0 + 4, 3)) == 6
    assert sum(tally.started for _, tally in fold.tallies(T0 + 4, 60, width=10)) == 9
    for second in range(T0 + 5, T0 + 8):
        one.count(second, tenants(a=1))
    fold.put(one.report(), T0 + 8)
    assert fold.told(T0 + 8) == T0 + 8, "the other one is far behind"


def test_a_window_may_begin_where_ten_seconds_do():
    fold, router = Fold(), Router("one")
    for second in range(T0, T0 + 100):
        router.count(second, tenants(a=1))
    fold.put(router.report(), T0 + 100)
    window = fold.over(T0 + 95, 60, width=10)
    assert (window.span_s, started(fold.over(T0 + 90, 60, width=10).bucket)) == (55, 60)


def test_replicas_are_added_up_over_routers_that_are_there_or_gone():
    fold = Fold(expire_s=10)
    for number in range(2 * MAX_DEPARTED):
        router = Router(f"r{number}")
        places = {"x": served(started=2, finished=1), "y": served(failed=1)}
        router.count(T0 + 20 * number, tenants(a=1), places)
        fold.put(router.report(), T0 + 20 * number)
    found = fold.window(3600, T0 + 20 * number + LATER).places
    assert found["x"].started == 4 * MAX_DEPARTED
    assert found["y"].failed == 2 * MAX_DEPARTED


def test_models_are_told_apart_where_there_are_several():
    fold, one, other = Fold(), Router("one", model="small"), Router("other", model="large")
    one.count(T0, tenants(a=1))
    fold.put(one.report(), T0)
    assert fold.window(10, T0 + LATER).models == {}
    other.count(T0, tenants(a=1, b=1))
    fold.put(other.report(), T0)
    models = fold.window(10, T0 + LATER).models
    assert {name: tally.started for name, tally in models.items()} == {"small": 1, "large": 2}


def failure(at: int, reason: str = "queue_full") -> Failure:
    return Failure(at, "a", reason, "id", "", rejected=at % 4 > 0)


def test_failures_come_once_in_order_of_time_and_the_newest_stay():
    fold, one, other = Fold(), Router("one"), Router("other")
    known = {"one": -1, "other": -1}
    for second in range(T0, T0 + 200):
        for router in (one, other):
            router.count(second, {})
            if second % 2 == (router is one):
                router.failures.append(failure(second, router.router_id))
            if second % 7 == 0:
                fold.put(router.report(known[router.router_id]), second)  # and the answer is lost
            known[router.router_id] = fold.put(router.report(known[router.router_id]), second)
    ats = range(T0, T0 + 200)
    failed, rejected = [at for at in ats if at % 4 == 0], [at for at in ats if at % 4]
    assert [each.at for each in fold.failures] == sorted(failed[-32:] + rejected[-32:])
    assert fold.reasons() == {"one": 100, "other": 100}
    anew = Fold()
    for router in (one, other):
        assert anew.put(router.report(known[router.router_id]), T0 + 200) == -1
        anew.put(router.report(), T0 + 200)
    assert anew.failures == fold.failures
    assert anew.reasons() == fold.reasons()


def test_reasons_of_routers_that_have_gone_still_count():
    fold = Fold(expire_s=10)
    for number in range(2 * MAX_DEPARTED):
        router = Router(f"r{number}")
        router.failures.append(failure(T0))
        router.count(T0, {})
        fold.put(router.report(), T0 + 20 * number)
    assert fold.reasons() == {"queue_full": 2 * MAX_DEPARTED}


def test_what_flows_is_told_of_present_routers_as_of_their_newest_word():
    fold, router = Fold(), Router("one")
    router.count(T0, {series(): served(started=3, finished=1, spent_s=4.0)})
    router.open_s, router.open_age_s, router.extra_open = 7.0, 1.5, 1
    old = router.report()
    router.count(T0 + 1, {series(): served(started=1, finished=1, spent_s=1.0)})
    fold.put(router.report(), T0 + 2)
    fold.put(old, T0 + 2)
    assert fold.flows(T0 + 2) == {"one": Flow(3, 2, 7.0, 1.5, 5.0)}
    assert fold.flows(T0 + 20) == {}
