import pytest

from chairlift.cluster.fairness_figures import (
    BatchShape,
    bystanders,
    fairness,
    jain,
    slowdown_ratio,
)
from chairlift.cluster.telemetry import OTHERS, Bucket, Tally
from chairlift.cluster.windows import Window
from support.reports import series, served

SHAPE = BatchShape(longest_prompt=100, tokens_in_flight=80)


def window(backlogged_s: float = 10.0, **services: float) -> Window:
    bucket: Bucket = {series(tenant): served(service) for tenant, service in services.items()}
    return Window(10, bucket, dict.fromkeys(services, backlogged_s))


@pytest.mark.parametrize(
    ("shares", "index"),
    [((5, 5), 1.0), ((1, 0), 0.5), ((1, 0, 0, 0), 0.25), ((1, 3), 0.8), ((1, 2, 3), 36 / 42)],
)
def test_jains_index(shares: tuple[float, ...], index: float):
    assert jain(shares) == pytest.approx(index)


@pytest.mark.parametrize("shares", [(), (3,), (0, 0)])
def test_jains_index_is_unknown_where_nothing_can_be_compared(shares: tuple[float, ...]):
    assert jain(shares) is None


def test_service_is_compared_by_weight():
    found = fairness(window(a=300, b=100), {"a": 3.0, "b": 1.0}, SHAPE)
    assert found.weighted_service == {"a": 100, "b": 100}
    assert (found.jain, found.gap) == (1.0, 0.0)
    found = fairness(window(a=300, b=100), {"a": 1.0, "b": 1.0}, SHAPE)
    assert found.jain == pytest.approx(400**2 / (2 * (300**2 + 100**2)))
    assert found.gap == 200


def test_the_gap_is_held_against_its_bound():
    weights = {"a": 1.0, "b": 1.0}
    assert fairness(window(a=1, b=2), weights, SHAPE).gap_bound == 2 * max(100, 2 * 80)
    assert fairness(window(a=1, b=2), {"a": 0.5, "b": 1.0}, SHAPE).gap_bound == 640
    assert fairness(window(a=1, b=2), weights, None).gap_bound is None
    assert fairness(window(a=1), weights, SHAPE).gap_bound is None


def test_who_did_not_wait_throughout_is_not_compared():
    services = window(a=100, b=100, c=1)
    some = services._replace(backlogged_s={"a": 9.5, "b": 9.0, "c": 5.0})
    found = fairness(some, dict.fromkeys("abc", 1.0), SHAPE)
    assert found.backlogged == ("a", "b")
    assert found.gap == 0


def test_who_waited_throughout_and_was_not_served_is_compared():
    assert fairness(window(a=100, b=0), {"a": 1.0, "b": 1.0}, SHAPE).jain == 0.5


def test_others_and_tenants_without_a_known_weight_are_not_compared():
    found = fairness(window(**{"a": 1, "b": 2, OTHERS: 50}), {"a": 1.0, OTHERS: 1.0}, SHAPE)
    assert found.backlogged == ("a",)
    assert found.jain is None


def test_slowdown_of_the_worst_is_held_against_the_median():
    bucket: Bucket = {}
    for tenant, value in {"a": 1.0, "b": 2.0, "c": 8.0, OTHERS: 90.0}.items():
        bucket[series(tenant)] = Tally()
        bucket[series(tenant)].slowdown.add(value)
    bucket[series("d")] = served()
    found = fairness(Window(10, bucket, {}), {}, None)
    assert found.slowdown_p99.keys() == {"a", "b", "c", OTHERS}
    assert found.slowdown_p99["c"] == pytest.approx(8.0, rel=0.01)
    assert found.slowdown_ratio == pytest.approx(4.0, rel=0.02)


def test_one_tenants_slowdown_has_nothing_to_be_held_against():
    assert slowdown_ratio([3.0]) is None
    assert slowdown_ratio([1.0, 3.0]) == 1.5


def test_refused_are_a_share_of_those_that_ended():
    bucket: Bucket = {
        series("a"): served(started=5, finished=2, rejected=1),
        series("a", "best_effort"): served(started=1, rejected=1),
        series("b"): served(started=1),
        series("c"): served(started=1, finished=1),
    }
    assert fairness(Window(10, bucket, {}), {}, None).refused == {"a": 0.5, "c": 0.0}


def slowed(times: float, number: int = 20, service: float = 1.0) -> Tally:
    tally = served(service)
    for _ in range(number):
        tally.slowdown.add(times)
    return tally


def test_who_is_best_effort_is_no_bystander():
    bucket: Bucket = {series("a"): slowed(2.0), series("nightly", "batch"): slowed(90.0)}
    found = bystanders(Window(10, bucket, {}), dict.fromkeys(["a", "nightly"], 1.0), 20)
    assert set(found) == {"a"}


def test_a_bystander_is_who_has_not_made_its_own_queue():
    bucket: Bucket = {
        series("a"): slowed(2.0),
        series("waits"): slowed(3.0),
        series("floods"): slowed(9.0, service=50.0),
        series("few"): slowed(4.0, number=19),
        series(OTHERS): slowed(5.0),
    }
    crowd = Window(10, bucket, {"waits": 10.0, "floods": 9.0})
    found = bystanders(crowd, dict.fromkeys(["a", "waits", "floods", "few"], 1.0), 20)
    assert found == {"a": pytest.approx(2.0, 0.01), "waits": pytest.approx(3.0, 0.01)}
    busy = crowd._replace(backlogged_s={"floods": 0.5})
    assert "floods" in bystanders(busy, dict.fromkeys(["a", "floods"], 1.0), 20), "it need not wait"
    assert "a" not in bystanders(busy, {"floods": 1.0}, 20), "its weight is not known"
