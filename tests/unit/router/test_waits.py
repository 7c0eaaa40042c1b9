import random
from dataclasses import dataclass

import pytest

from chairlift.cluster.fairness import VirtualCounters
from chairlift.cluster.protocol import Priority
from chairlift.router.fair_queue import FairQueue
from chairlift.router.waits import (
    ENOUGH,
    MARGIN,
    MAX_CORRECTION,
    MIN_CORRECTION,
    REMEMBERED,
    FirstToken,
    Prediction,
    StartRate,
)
from support.queueing import Waiting


def test_the_rate_is_that_of_starts_while_others_wait():
    rate = StartRate()
    rate.started(0.0, 1, waiting=True)
    for tick in range(1, 11):
        rate.started(tick / 2, 1, waiting=True)
    assert rate.per_second(5.0) == pytest.approx(2.0)


def test_nothing_is_known_of_the_rate_without_a_queue():
    rate = StartRate()
    for tick in range(100):
        rate.started(tick / 10, 1, waiting=False)
    assert rate.per_second(10.0) is None


def test_starts_into_free_seats_say_nothing_of_the_rate():
    """Guards against a burst at the start that looks like an endless speed."""
    rate = StartRate()
    for left in range(64):
        rate.started(0.0, 1, waiting=left < 63)
    rate.started(0.0, 1, waiting=True)
    for tick in range(1, 11):
        rate.started(float(tick), 2, waiting=True)
    assert rate.per_second(10.0) == pytest.approx(2.0)


def test_time_without_a_queue_does_not_slow_the_rate():
    rate = StartRate()
    for start in (0.0, 500.0):
        for tick in range(6):
            rate.started(start + tick, 3, waiting=True)
        rate.idle()
    assert rate.per_second(505.0) == pytest.approx(3.0)


def test_starts_of_one_moment_count_together():
    rate = StartRate()
    for tick in range(10):
        for _ in range(4):
            rate.started(float(tick), 1, waiting=True)
    assert rate.per_second(9.0) == pytest.approx(4.0)


def test_the_rate_follows_the_last_ten_seconds_of_queueing_in_bounded_memory():
    rate = StartRate()
    for tick in range(4000):
        rate.started(tick / 100, 1 if tick < 2000 else 5, waiting=True)
    assert rate.per_second(40.0) == pytest.approx(500.0, rel=0.01)
    assert len(rate._slices) < 60


def test_a_rate_of_long_ago_is_forgotten():
    rate = StartRate()
    for tick in range(10):
        rate.started(float(tick), 1, waiting=True)
    assert rate.per_second(60.0) is not None
    assert rate.per_second(100.0) is None


def predict(
    first: FirstToken, ahead: int, free: int = 0, rate: float | None = 2.0
) -> Prediction | None:
    return first.predict(ahead, free, rate, 100, 1000.0)


def test_where_a_seat_is_free_only_the_prompt_takes_time():
    assert predict(FirstToken(), ahead=0, free=1, rate=None) == Prediction(0.1, 0.0)
    assert FirstToken().predict(0, 1, None, 100, None) == Prediction(0.0, 0.0)


def test_a_queue_takes_as_long_as_those_ahead_and_oneself_to_start():
    assert predict(FirstToken(), ahead=9) == Prediction(MARGIN * 5.0 + 0.1, 5.0)
    assert predict(FirstToken(), ahead=9, free=2) == Prediction(MARGIN * 4.0 + 0.1, 4.0)
    assert predict(FirstToken(), ahead=9, rate=None) is None


def test_a_replica_that_only_decodes_does_not_make_prompts_look_slow():
    first = FirstToken()
    first.predict(0, 1, None, 100, 5000.0)
    assert first.predict(0, 1, None, 1000, 10.0) == Prediction(0.2, 0.0)


def test_the_correction_covers_nearly_all_waits_within_bounds():
    first, rng = FirstToken(), random.Random(2)
    for _ in range(200):
        first.learn(Prediction(0.0, 10.0), 10.0 * rng.uniform(0.8, 1.6))
    assert 1.5 < first.correction <= 1.6
    assert predict(first, ahead=9).seconds == pytest.approx(MARGIN * 5.0 * first.correction + 0.1)
    for waited_s, bound in ((9999.0, MAX_CORRECTION), (0.001, MIN_CORRECTION)):
        for _ in range(REMEMBERED + ENOUGH):
            first.learn(Prediction(0.0, 10.0), waited_s)
        assert first.correction == bound


def test_few_waits_and_short_ones_teach_nothing():
    first = FirstToken()
    for _ in range(ENOUGH - 1):
        first.learn(Prediction(0.0, 10.0), 20.0)
    for _ in range(500):
        first.learn(Prediction(0.0, 0.01), 20.0)
    assert first.correction == 1.0


@dataclass
class Outcome:
    admitted: int = 0
    refused: int = 0
    in_time: int = 0
    late: int = 0
    idle_seats: int = 0
    seat_ticks: int = 0


SEATS, TICK_S, DEADLINE_S, WARM_UP_S = 16, 0.02, 8.0, 40.0


def overload(tenants: dict[str, float], factor: float, seconds: float = 240.0) -> Outcome:
    """Seats that are kept for an exponential time, one second in the mean; shares of arrivals."""
    rng, counters = random.Random(11), VirtualCounters()
    queue: FairQueue[Waiting] = FairQueue(counters, fair=True, promote_after_s=20.0)
    rate, first, outcome = StartRate(), FirstToken(), Outcome()
    predictions: dict[Waiting, Prediction] = {}
    running: list[float] = []
    for tick in range(int(seconds / TICK_S)):
        now = tick * TICK_S
        for name, share in tenants.items():
            if rng.random() >= factor * SEATS * TICK_S * share:
                continue
            ahead = queue.ahead(Priority.STANDARD, name, 1.0, 0.0)[0]
            found = first.predict(ahead, SEATS - len(running), rate.per_second(now), 1, None)
            if found is not None and found.seconds > DEADLINE_S:
                outcome.refused += now > WARM_UP_S
                continue
            outcome.admitted += now > WARM_UP_S
            item = Waiting(name, 10, 10, queued_at=now, expires_at=now + DEADLINE_S)
            queue.push(item)
            if found is not None:
                predictions[item] = found
        running = [end for end in running if end > now]
        for item in queue.expired(now):
            outcome.late += item.queued_at > WARM_UP_S
            if item in predictions:
                first.learn(predictions.pop(item), now - item.queued_at)
        while len(running) < SEATS and (item := queue.next(now)) is not None:
            queue.remove(item)
            counters.charge(item.tenant, 10, 10)
            running.append(now + rng.expovariate(1.0))
            rate.started(now, 1, waiting=len(queue) > 0)
            if item in predictions:
                first.learn(predictions.pop(item), now - item.queued_at)
            outcome.in_time += item.queued_at > WARM_UP_S
        outcome.idle_seats += (SEATS - len(running)) * (now > WARM_UP_S)
        outcome.seat_ticks += SEATS * (now > WARM_UP_S)
    return outcome


@pytest.mark.parametrize(
    "tenants", [{"one": 1.0}, {"few": 0.2, "many": 0.8}, {"a": 0.1, "b": 0.3, "c": 0.6}]
)
def test_under_overload_who_is_let_in_starts_in_time_and_no_seat_is_empty(tenants):
    outcome = overload(tenants, factor=2.0)
    assert outcome.admitted > 500 and outcome.refused > 500
    assert outcome.in_time >= 0.99 * (outcome.in_time + outcome.late)
    assert outcome.idle_seats <= 0.01 * outcome.seat_ticks


def test_below_capacity_nobody_is_refused():
    outcome = overload({"a": 0.5, "b": 0.5}, factor=0.7)
    assert outcome.refused == 0 and outcome.late == 0
