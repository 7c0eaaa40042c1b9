"""What was decided is remembered, with its reason."""

from dataclasses import replace

from chairlift.cluster.autoscaling import Cause, LoadReading, ScalingPolicy
from chairlift.cluster.scaling import MOST_STEPS, Fleet, scaled

T0 = 1_700_000_000.0
POLICY = ScalingPolicy(min_replicas=0, max_replicas=4, first_token_target_s=1.0)
FLEET = Fleet(POLICY, target=1, ready=1)
BUSY = LoadReading(ready=1, arrivals_per_s=20.0, seat_s=1.0, room=10)


def test_one_that_has_never_been_there_is_started_once():
    scaling = scaled(replace(FLEET, target=0, ready=0), None, LoadReading(ready=0), T0)
    assert scaling.decision.desired == 1


def test_a_step_is_remembered_with_what_it_was_made_of():
    before = scaled(FLEET, None, LoadReading(ready=1), T0)
    assert not before.steps
    scaling = scaled(FLEET, before, BUSY, T0 + 1)
    (step,) = scaling.steps
    assert (step.at, step.before, step.after, step.ready) == (T0 + 1, 1, 3, 1)
    assert step.cause is Cause.LOAD and "20.00 sequences/s" in step.reason
    assert scaling.counts == {(Cause.LOAD, "up"): 1}
    after = scaled(replace(FLEET, target=3), scaling, replace(BUSY, ready=3), T0 + 2)
    assert (after.steps, after.counts) == (scaling.steps, scaling.counts)


def test_a_bound_that_is_met_is_told_once():
    scaling = None
    for second in range(5):
        fleet = replace(FLEET, target=4)
        reading = replace(BUSY, arrivals_per_s=90.0)
        scaling = scaled(fleet, scaling, reading, T0 + second)
    assert scaling is not None
    assert [step.cause for step in scaling.steps] == [Cause.BOUNDS]


def test_it_goes_on_from_what_there_is_when_somebody_else_had_a_hand_in_it():
    before = scaled(FLEET, None, LoadReading(ready=1), T0)
    scaling = scaled(replace(FLEET, target=3, ready=3), before, LoadReading(ready=3), T0 + 1)
    assert scaling.decision.desired == 3


def test_so_many_steps_are_remembered_at_the_most():
    scaling = scaled(FLEET, None, LoadReading(ready=1), T0)
    for turn in range(2 * MOST_STEPS):
        scaling = scaled(FLEET, scaling, BUSY, T0 + 10 * turn)
    assert len(scaling.steps) == MOST_STEPS
    assert scaling.counts == {(Cause.LOAD, "up"): 2 * MOST_STEPS}
