import json
from dataclasses import asdict
from typing import Any

import pytest

from chairlift.cluster.figures import Figures, FiguresSettings, Targets, figures
from chairlift.cluster.protocol import ENDLESS, LoadReport
from chairlift.cluster.telemetry import Failure, ReplicaState, Tally
from chairlift.cluster.windows import SPANS, Fold
from support.reports import T0, Router, series, served

SETTINGS = FiguresSettings(Targets(1.0, 0.1), price_per_replica_hour=3.0)
NOW = T0 + 2


def told(*routers: Router) -> Fold:
    fold = Fold()
    for router in routers:
        fold.put(router.report(), T0 + 1)
    return fold


def router(tallies: dict[Any, Tally] | None = None, name: str = "one") -> Router:
    made = Router(name)
    made.count(T0, tallies or {})
    return made


def with_replicas(name: str = "one", **replicas: ReplicaState) -> Router:
    made = router(name=name)
    made.replicas = replicas
    return made


def made(*routers: Router, settings: FiguresSettings = SETTINGS, now: float = NOW) -> Figures:
    return figures(told(*routers), settings, now)


def busy() -> Router:
    tally = served(
        started=20,
        finished=6,
        cancelled=1,
        rejected=2,
        failed=1,
        met=4,
        prompt_tokens=400,
        cached_tokens=100,
        output_tokens=200,
        on_time=150,
    )
    for value in (0.1, 0.2, 0.3):
        tally.first_token.add(value)
    return router({series("a", "normal", "≤128"): tally})


def test_rates_and_shares_are_those_of_the_window():
    found = made(busy()).windows["10s"].all
    assert (found.started, found.finished, found.cancelled) == (20, 6, 1)
    assert (found.rejected, found.failed, found.met) == (2, 1, 4)
    assert (found.requests_per_s, found.met_per_s) == (2.0, 0.4)
    assert (found.tokens_per_s, found.prompt_tokens_per_s) == (20.0, 40.0)
    assert found.goodput == 0.4  # who was refused, cancelled or failed did not meet its targets
    assert found.on_time == 0.75
    assert found.cached_share == 0.25
    assert found.ttft_s.p50 == pytest.approx(0.2, rel=0.01)


def test_rates_are_over_the_time_that_a_window_really_covers():
    window = figures(told(busy()), SETTINGS, T0 + 95).windows["1h"]
    assert 3540 < window.span_s < 3600
    assert window.all.requests_per_s == 20 / window.span_s


def test_requests_are_told_apart_by_tenant_class_and_length():
    window = made(
        router(
            {
                series("a", "normal", "≤128"): served(started=1),
                series("a", "interactive", "≤512"): served(started=2),
                series("b", "normal", "≤512"): served(started=4),
            }
        )
    ).windows["1m"]
    assert {name: each.started for name, each in window.tenants.items()} == {"a": 3, "b": 4}
    assert {n: each.started for n, each in window.classes.items()} == {
        "interactive": 2,
        "normal": 5,
    }
    assert {name: each.started for name, each in window.lengths.items()} == {"≤128": 1, "≤512": 6}


def test_where_nothing_happened_nothing_is_known():
    for found in (made(), made(router())):
        assert list(found.windows) == list(SPANS)
        for window in found.windows.values():
            assert window.all.goodput is window.all.on_time is window.all.cached_share is None
            assert window.all.ttft_s.p99 is window.all.duration_s.p50 is None
            assert window.fairness.jain is window.fairness.gap is None
            assert window.fairness.slowdown_ratio is window.cost_per_met is None
            assert (window.tenants, window.fairness.refused) == ({}, {})
        assert found.oldest_waiting_s is None


def test_a_met_request_costs_its_share_of_what_live_replicas_cost():
    one = busy()
    one.replicas = {
        "x": ReplicaState(None, None, live=True),
        "y": ReplicaState(None, None, live=True),
        "z": ReplicaState(None, None, live=False),
    }
    assert made(one).windows["10s"].cost_per_met == pytest.approx(3.0 * 2 * 10 / 3600 / 4)


def test_without_price_met_requests_or_live_replicas_the_cost_is_unknown():
    free, idle = busy(), router()
    free.replicas = idle.replicas = {"x": ReplicaState(None, None, live=True)}
    unpriced = FiguresSettings(Targets(1.0, 0.1))
    assert made(free, settings=unpriced).windows["10s"].cost_per_met is None
    assert made(idle).windows["10s"].cost_per_met is None
    assert made(busy()).windows["10s"].cost_per_met is None


def test_a_replica_is_as_its_newest_report_says():
    load = LoadReport(
        stamp=7,
        running=3,
        waiting=1,
        blocks_used=5,
        blocks_total=20,
        preemptions=2,
        cache_queries=10,
        cache_hits=4,
    )
    old = load._replace(stamp=6, running=9)
    replica = made(
        with_replicas("one", x=ReplicaState(load, 0.5, live=False, seats=8)),
        with_replicas("other", x=ReplicaState(old, 0.1, live=True)),
    ).replicas["x"]
    assert replica.live
    assert replica.age_s == pytest.approx(1.5)  # for the router said so a second ago
    assert (replica.running, replica.waiting, replica.seats) == (3, 1, 8)
    assert (replica.kv_use, replica.preemptions, replica.prefix_hit_share) == (0.25, 2, 0.4)


def test_a_replica_tells_what_it_computed_again_and_how_long_its_cache_lasts():
    load = LoadReport(tokens_computed=200, tokens_recomputed=30, steps_left=40)
    endless = load._replace(tokens_computed=0, steps_left=ENDLESS)
    found = made(
        with_replicas(x=ReplicaState(load, 0.5, live=True), y=ReplicaState(endless, 0.5, live=True))
    ).replicas
    assert (found["x"].recomputed_share, found["x"].steps_left) == (0.15, 40)
    assert found["y"].recomputed_share is found["y"].steps_left is None


def test_what_became_of_requests_is_told_by_replica():
    one, there = Router("one"), served(started=5, finished=3, failed=1)
    there.first_token.add(0.25)
    one.count(T0, {}, {"x": there})
    found = made(one).windows["1m"].replicas
    assert list(found) == ["x"]
    assert (found["x"].sent, found["x"].finished, found["x"].failed) == (5, 3, 1)
    assert found["x"].ttft_s.p50 == pytest.approx(0.25, rel=0.01)


def test_one_model_has_all_requests_and_several_have_their_own():
    one, other = Router("one", model="small"), Router("other", model="large")
    for each, number in ((one, 3), (other, 4)):
        each.count(T0, {series(): served(started=number)})
    window = made(one).windows["10s"]
    assert window.models == {"small": window.all}
    models = made(one, other).windows["10s"].models
    assert {name: each.started for name, each in models.items()} == {"large": 4, "small": 3}


def test_the_newest_failures_come_first():
    one = router()
    one.failures = [
        Failure(T0 - 5, "a", "queue_full", "id-1", "", rejected=True),
        Failure(T0, "a", "replica_lost", "id-2", "x", rejected=False),
    ]
    found = made(one)
    assert [each.request_id for each in found.failures] == ["id-2", "id-1"]
    assert found.failure_reasons == {"queue_full": 1, "replica_lost": 1}


def test_a_replica_that_was_never_heard_of_is_unknown_but_for_its_seats():
    replica = made(with_replicas(x=ReplicaState(None, None, live=True, seats=4))).replicas["x"]
    assert (replica.live, replica.seats) == (True, 4)
    assert replica.running is replica.kv_use is replica.age_s is replica.prefix_hit_share is None


def test_shares_of_nothing_are_unknown():
    replica = made(with_replicas(x=ReplicaState(LoadReport(), 0.0, live=True))).replicas["x"]
    assert replica.running == 0
    assert replica.kv_use is replica.prefix_hit_share is None


def test_queues_are_added_up_and_their_oldest_ages_on():
    one, other = router(name="one"), router(name="other")
    one.queued, one.oldest_s = {"a": 2, "b": 1}, {"a": 0.5, "b": 0.1}
    other.queued, other.oldest_s = {"a": 3}, {"a": 4.0}
    found = made(one, other)
    assert {name: each.queued for name, each in found.queues.items()} == {"a": 5, "b": 1}
    assert found.queues["a"].oldest_s == pytest.approx(5.0)
    assert found.oldest_waiting_s == pytest.approx(5.0)
    assert (found.routers, found.models) == (2, ("m",))


def test_a_router_that_departed_has_no_queue_and_no_replicas():
    gone = with_replicas(x=ReplicaState(LoadReport(), 0.0, live=True))
    gone.queued = {"a": 1}
    found = made(gone, now=T0 + 12)
    assert (found.routers, found.queues, found.replicas) == (0, {}, {})


def test_totals_balance_with_what_routers_have_open():
    totals = made(busy()).totals
    assert (totals.started, totals.finished, totals.open, totals.lost) == (20, 6, 10, 0)
    assert totals.balanced


def test_totals_balance_when_a_router_departs():
    totals = made(busy(), now=T0 + 12).totals
    assert (totals.started, totals.open, totals.lost, totals.balanced) == (20, 0, 10, True)


def test_a_request_that_is_missing_shows():
    one = busy()
    one.totals[series("a", "normal", "≤128")].finished += 1
    report = one.report()
    fold = Fold()
    fold.put(type(report)(**{**fields_of(report), "open": 10}), T0)
    assert figures(fold, SETTINGS, NOW).totals.balanced is False
    fold.put(type(report)(**{**fields_of(report), "open": None}), T0)
    assert figures(fold, SETTINGS, NOW).totals.balanced is None


def fields_of(report: Any) -> dict[str, Any]:
    return {name: getattr(report, name) for name in report.__slots__}


def test_all_of_it_goes_through_json():
    one = busy()
    one.replicas = {"x": ReplicaState(LoadReport(running=2), 0.5, live=True, seats=8)}
    one.queued, one.oldest_s = {"a": 1}, {"a": 0.5}
    found = asdict(made(one))
    text = json.dumps(found, allow_nan=False)
    back = json.loads(text)
    assert back["windows"]["10s"]["all"]["ttft_s"] == found["windows"]["10s"]["all"]["ttft_s"]
    assert back == json.loads(json.dumps(back))
    assert back["windows"]["5m"]["tenants"]["a"]["started"] == 20
    assert back["replicas"]["x"]["running"] == 2
    assert back["targets"] == {"first_token_s": 1.0, "per_token_s": 0.1}
