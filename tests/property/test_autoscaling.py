"""Whatever is read, in whatever order: bounds, cool-downs and reasons hold."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chairlift.cluster.autoscaling import (
    Cause,
    LoadReading,
    ScalingPolicy,
    ScalingState,
    decide,
)

T0 = 1_700_000_000.0

small = st.floats(0, 100)
maybe = st.none() | st.floats(0.01, 100)
readings = st.builds(
    LoadReading,
    ready=st.integers(0, 12),
    starting=st.integers(0, 3),
    draining=st.integers(0, 1),
    arrivals_per_s=small | st.just(0.0),
    slope=st.floats(-5, 5),
    seat_s=maybe,
    room=maybe,
    sequence_tokens=maybe,
    tokens_per_s=maybe,
    running=st.integers(0, 50) | st.just(0),
    waiting=st.integers(0, 500) | st.just(0),
    oldest_s=st.floats(0, 20),
    queue_delay_s=st.floats(0, 20),
    goodput=st.none() | st.floats(0, 1),
    age_s=st.sampled_from([0.0, 1.0, 30.0]),
)
policies = st.builds(
    ScalingPolicy,
    min_replicas=st.integers(0, 3),
    max_replicas=st.integers(3, 10),
    first_token_target_s=st.just(1.0),
    up_cool_down_s=st.floats(0, 5),
    down_cool_down_s=st.floats(0, 20),
    hold_s=st.floats(0, 20),
    idle_s=st.floats(1, 30),
    down_share=st.floats(0.1, 1),
    price_per_replica_hour=st.just(1.0),
    max_price_per_hour=st.none() | st.floats(3, 12),
)
courses = st.lists(st.tuples(readings, st.floats(-1, 10)), max_size=15)


@given(policies, courses)
def test_bounds_cool_downs_and_ceilings_always_hold(policy, course):
    state, now = ScalingState.start(policy.min_replicas, T0), T0
    up_at = changed_at = float("-inf")
    for reading, passes_s in course:
        now += passes_s
        before = state.desired
        state, decision = decide(policy, state, reading, now)
        assert policy.min_replicas <= decision.desired <= policy.max_replicas
        assert decision.desired == state.desired
        assert decision.reason
        if policy.max_price_per_hour is not None:
            assert decision.desired <= max(1, policy.min_replicas, policy.max_price_per_hour)
        if decision.desired > before > 0:
            assert not 0 <= now - up_at < policy.up_cool_down_s
        if decision.desired < before:
            assert not 0 <= now - changed_at < policy.down_cool_down_s
            assert not reading.draining
            assert before - decision.desired <= max(1, int(policy.down_share * before))
            assert decision.desired or before == 1
        if decision.desired != before:
            assert reading.age_s <= policy.stale_s
            changed_at = now
            up_at = now if decision.desired > before else up_at
        assert len(state.needed) <= len(course)


@given(policies, readings, st.integers(1, 3), st.floats(0, 50), st.integers(0, 100))
def test_more_load_never_asks_for_fewer(policy, reading, desired, arrivals, waiting):
    reading = replace(reading, age_s=0.0)
    more = replace(
        reading,
        arrivals_per_s=reading.arrivals_per_s + arrivals,
        waiting=reading.waiting + waiting,
    )
    state = ScalingState.start(desired, T0 - 100)
    _, less_ = decide(policy, state, reading, T0)
    _, more_ = decide(policy, state, more, T0)
    assert more_.desired >= less_.desired
    assert more_.wanted >= less_.wanted


@given(policies, st.floats(0, 5), st.floats(0.01, 10), st.integers(0, 60))
def test_under_a_steady_load_it_comes_to_rest_and_stays(policy, arrivals, seat_s, start):
    reading = LoadReading(ready=0, arrivals_per_s=arrivals, seat_s=seat_s, room=4.0)
    state = ScalingState.start(min(max(start, policy.min_replicas), policy.max_replicas), T0)
    course = []
    for second in range(300):
        there = replace(reading, ready=state.desired, running=int(arrivals > 0))
        state, decision = decide(policy, state, there, T0 + second)
        course.append(decision.desired)
    turns = [after - before for before, after in pairwise(course)]
    turns = [turn for turn in turns if turn]
    assert all(turn > 0 for turn in turns) or all(turn < 0 for turn in turns)
    assert len(set(course[200:])) == 1


@given(policies, st.integers(1, 500), st.floats(0, 20))
def test_from_none_one_comes_at_once(policy, waiting, oldest_s):
    policy = replace(policy, min_replicas=0)
    state = replace(ScalingState.start(0, T0), up_at=T0, changed_at=T0)
    reading = LoadReading(ready=0, waiting=waiting, oldest_s=oldest_s)
    _, decision = decide(policy, state, reading, T0)
    assert decision.desired >= 1
    assert decision.cause in (Cause.AWAKE, Cause.BOUNDS, Cause.COST, Cause.QUEUE)
