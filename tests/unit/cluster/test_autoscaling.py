"""How many replicas there should be, by what is offered; up at once, down slowly."""

from dataclasses import replace

import pytest

from chairlift.cluster.autoscaling import (
    Cause,
    LoadReading,
    ScalingDecision,
    ScalingPolicy,
    ScalingState,
    decide,
)

T0 = 1_700_006_400.0  # 00:00 UTC
POLICY = ScalingPolicy(min_replicas=1, max_replicas=8, first_token_target_s=1.0)
BUSY = LoadReading(ready=2, arrivals_per_s=8.0, seat_s=1.0, room=10, running=8)
"""A sequence takes a tenth of a second of a replica: 0.8 replicas' work."""


class Scaler:
    """Told readings, one a second; replicas are there as soon as they are desired."""

    def __init__(self, policy: ScalingPolicy = POLICY, desired: int = 2) -> None:
        self.policy, self.now = policy, T0
        self.state = ScalingState.start(desired, T0)

    def see(self, reading: LoadReading, seconds: int = 1) -> ScalingDecision:
        for _ in range(seconds):
            self.now += 1.0
            there = replace(reading, ready=self.state.desired)
            self.state, decision = decide(self.policy, self.state, there, self.now)
        return decision


def per_s(arrivals: float, **changes: float) -> LoadReading:
    return replace(BUSY, arrivals_per_s=arrivals, **changes)


def test_what_is_offered_fills_replicas_to_the_target():
    decision = Scaler().see(per_s(31.0))
    assert (decision.desired, decision.cause) == (4, Cause.LOAD)  # 3.1 / 0.8
    assert "31.00 sequences/s keep 3.10 replicas busy" in decision.reason


def test_work_is_that_of_the_seat_or_of_the_tokens_whichever_is_more():
    assert BUSY.work_s == pytest.approx(0.1)
    assert replace(BUSY, sequence_tokens=500, tokens_per_s=1000).work_s == pytest.approx(0.5)
    assert replace(BUSY, seat_s=None).work_s is None
    assert Scaler().see(per_s(8.0, sequence_tokens=500, tokens_per_s=1000)).desired == 5


def test_what_runs_fills_replicas_to_the_target_too():
    decision = Scaler().see(per_s(8.0, running=17))
    assert (decision.desired, decision.cause) == (3, Cause.SEATS)  # 1.7 / 0.8
    assert decision.reason == "17 requests that run fill 1.70 replicas"


def test_rising_arrivals_are_met_before_they_come_but_no_more_than_doubled():
    rising = per_s(12.0, slope=0.5)
    decision = Scaler().see(rising)
    assert (decision.desired, decision.cause) == (3, Cause.SLOPE)  # (12 + 10 × 0.5) / 10 / 0.8
    assert Scaler().see(replace(rising, slope=100.0)).desired == 3


def test_what_waits_too_long_is_to_be_gone_soon():
    waiting = per_s(8.0, waiting=100, oldest_s=0.6)
    decision = Scaler().see(waiting)
    assert (decision.desired, decision.cause) == (3, Cause.QUEUE)  # 0.8 / 0.8 + 100 × 0.1 / 5
    assert decision.reason == "100 requests wait, the oldest for 0.60 s"
    assert Scaler().see(replace(waiting, oldest_s=0.2)).cause is Cause.STEADY


def test_where_the_work_of_a_request_is_not_known_those_that_wait_call_one_more():
    unknown = LoadReading(ready=2, arrivals_per_s=9.0, waiting=5, oldest_s=2.0)
    scaler = Scaler()
    assert scaler.see(unknown).desired == 3
    now, starting = scaler.now + 5, replace(unknown, ready=2, starting=1)
    assert decide(scaler.policy, scaler.state, starting, now)[1].desired == 3


def test_short_goodput_calls_one_more_where_there_is_work_for_it():
    scaler = Scaler()
    short = per_s(10.0, goodput=0.9)
    assert (scaler.see(short).desired, scaler.see(short, 15).desired) == (3, 3)
    assert scaler.see(short, 10).desired == 4, "the first has had its time to show"
    assert Scaler().see(per_s(1.0, goodput=0.0)).desired == 2, "more replicas would not help"


def test_it_goes_down_by_one_once_fewer_were_enough_for_a_while():
    scaler = Scaler(desired=4)
    assert scaler.see(per_s(8.0), 29).desired == 4
    decision = scaler.see(per_s(8.0), 2)
    assert (decision.desired, decision.cause) == (3, Cause.CALM)
    assert scaler.see(per_s(8.0), 9).desired == 3
    assert scaler.see(per_s(8.0), 1).desired == 2
    assert scaler.see(per_s(8.0), 100).desired == 2, "0.8 / 0.6 is more than 1"


def test_a_peak_within_the_hold_keeps_what_it_needed():
    scaler = Scaler(desired=4)
    scaler.see(per_s(8.0), 20)
    scaler.see(per_s(17.9))  # 3 at the low load
    assert scaler.see(per_s(8.0), 25).desired == 3
    assert scaler.see(per_s(8.0), 10).desired == 2


def test_no_replica_goes_while_another_hands_over():
    scaler = Scaler(desired=4)
    decision = scaler.see(per_s(8.0, draining=1), 60)
    assert (decision.desired, decision.cause) == (4, Cause.COOL_DOWN)


def test_many_replicas_go_in_proportion():
    policy = replace(POLICY, max_replicas=100)
    assert Scaler(policy, desired=40).see(per_s(8.0), 31).desired == 30


def test_the_last_one_goes_when_nobody_has_asked_for_long_and_one_comes_at_once():
    scaler = Scaler(replace(POLICY, min_replicas=0), desired=1)
    scaler.see(per_s(8.0))
    quiet = LoadReading(ready=1)
    assert scaler.see(quiet, 299).desired == 1
    assert scaler.see(quiet).cause is Cause.IDLE
    assert scaler.see(quiet, 1000).desired == 0
    decision = scaler.see(LoadReading(ready=0, waiting=1, oldest_s=0.1))
    assert (decision.desired, decision.cause) == (1, Cause.AWAKE)


def test_many_that_wait_wake_as_many_as_they_need():
    scaler = Scaler(replace(POLICY, min_replicas=0), desired=1)
    scaler.see(per_s(8.0))
    scaler.see(LoadReading(ready=1), 400)
    assert scaler.see(LoadReading(ready=0, waiting=200, oldest_s=0.6)).desired == 4


def test_old_readings_say_nothing():
    scaler = Scaler(desired=4)
    scaler.see(per_s(8.0), 25)
    decision = scaler.see(per_s(80.0, age_s=11.0))
    assert (decision.desired, decision.cause) == (4, Cause.STALE)
    assert scaler.see(per_s(8.0), 25).desired == 4, "what was seen before the pause counts no more"


def test_bounds_hold_whatever_is_wanted():
    decision = Scaler().see(per_s(1000.0))
    assert (decision.desired, decision.wanted, decision.cause) == (8, 125, Cause.BOUNDS)
    assert "125 would be needed, 8 are allowed" in decision.reason
    assert Scaler(replace(POLICY, min_replicas=3)).see(per_s(1.0)).desired == 3


def test_there_are_no_more_than_are_paid_for():
    policy = replace(POLICY, price_per_replica_hour=0.7, max_price_per_hour=2.1)
    decision = Scaler(policy).see(per_s(60.0))
    assert (decision.desired, decision.cause) == (3, Cause.COST)
    assert "8 would be needed, 3 are paid for" in decision.reason


def test_a_days_replica_hours_once_used_up_leave_the_least_until_midnight():
    policy = replace(POLICY, max_replica_hours_per_day=48, max_replicas=4)
    scaler = Scaler(policy, desired=4)
    scaler.now = T0 + 12.1 * 3600 - 60
    scaler.state = replace(scaler.state, at=T0 + 11 * 3600, spent_s=44 * 3600)
    assert scaler.see(per_s(31.0)).desired == 1
    scaler.now = T0 + 24 * 3600
    assert scaler.see(per_s(31.0)).desired == 4


def test_a_clock_that_is_set_back_forgets_what_is_to_come():
    scaler = Scaler(desired=4)
    scaler.see(per_s(8.0), 20)
    scaler.now -= 3600
    assert scaler.see(per_s(8.0), 29).desired == 4
    assert scaler.see(per_s(8.0), 3).desired == 3
