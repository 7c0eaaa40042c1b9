"""A cluster that grows and shrinks loses nobody, repeats, and is paid for while it is there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from chairlift.cluster.autoscaling import ScalingPolicy
from chairlift.evaluation.fleet_load import Scaled, fitted_arrivals, fleet_load, rates_of
from chairlift.evaluation.fleet_sizers import Fixed, Ours, ServeRule, ServesDefault
from chairlift.evaluation.fleet_world import FleetCourse, FleetSettings, Sight, play_fleet
from chairlift.evaluation.guard_replica import Machine
from chairlift.evaluation.lengths import Lengths
from chairlift.evaluation.traces import Arrival
from chairlift.router.metrics import Outcome

MACHINE = Machine(seats=4, token_budget=256, blocks=1024, base_s=0.02, per_token_s=0.0005)
COURSE = [Arrival(at / 8, Lengths(100 + at % 50, 5 + at % 40)) for at in range(400)]
SETTINGS = FleetSettings(
    fleet_load(COURSE, Scaled(1.0, 1.0, 0.0)), MACHINE, start=2, start_s=2.0, first_token_s=2.0
)


@dataclass(frozen=True, slots=True)
class Swing:
    """From one replica to four and back, every three seconds."""

    def desired(self, sight: Sight) -> int:
        return 4 if sight.now // 3 % 2 else 1


def told(course: FleetCourse) -> list[tuple[object, ...]]:
    return [
        (each.arrived_at, each.first_token_at, each.ended_at, each.outcome) for each in course.asked
    ]


def test_everybody_is_answered_once_and_in_full_while_replicas_come_and_go():
    course = play_fleet(SETTINGS, Swing(), 4)
    assert len(course.asked) == 400
    assert {each.outcome for each in course.asked} == {Outcome.FINISHED}
    assert all(each.tokens == each.request.sampling.max_tokens for each in course.asked)
    assert course.moved > 0
    assert {each.ready for each in course.sizes} >= {1, 4}
    assert all(one <= other for each in course.asked for one, other in [sorted_ends(each)])


def sorted_ends(asked) -> tuple[float, float]:
    assert asked.tokens_at == sorted(asked.tokens_at)
    return asked.first_token_at, asked.ended_at


def test_a_course_follows_from_its_settings():
    one, other = (play_fleet(SETTINGS, Swing(), 4) for _ in range(2))
    assert told(one) == told(other)
    assert one.sizes == other.sizes and one.replica_s == other.replica_s
    assert told(play_fleet(replace(SETTINGS, seed=1), Swing(), 4)) != told(one)


def test_a_fixed_size_is_paid_for_until_the_last_request_comes():
    course = play_fleet(SETTINGS, Fixed(2), 2)
    assert course.replica_s == pytest.approx(2 * SETTINGS.given[-1].at_s)
    assert course.moved == 0


def test_a_replica_serves_when_it_has_started_and_is_paid_for_before():
    course = play_fleet(SETTINGS, Fixed(3), 3)
    ready = {size.at_s: (size.ready, size.starting) for size in course.sizes}
    assert ready[1.0] == (2, 1)
    assert ready[2.0] == (2, 1)
    assert ready[4.0] == (3, 0)
    assert course.replica_s == pytest.approx(3 * SETTINGS.given[-1].at_s - 1.0)


def test_serves_rule_waits_out_its_delays_on_a_step_of_load():
    sizer, desired, course = ServesDefault(ServeRule(1, 10)), 1, []
    for second in range(1200):
        ongoing = 12 if 100 <= second < 300 else 0
        desired = sizer.desired(Sight(float(second), None, desired, desired, 0, 0, ongoing))  # type: ignore[arg-type]
        course.append(desired)
    # Seen in the mean of thirty seconds, more than one replica is wanted from second 105 on, and
    # done after thirty more, when all of the twelve over two are in the mean.
    assert set(course[:130]) == {1}
    assert course[140] == 6
    assert set(course[140:900]) == {6}
    assert course[-1] == 1


def test_serves_rule_starts_over_when_the_wish_is_gone_for_a_moment():
    sizer, desired, course = ServesDefault(ServeRule(1, 10, look_back_period_s=0.0)), 1, []
    for second in range(100):
        ongoing = 0 if second == 20 else 8
        desired = sizer.desired(Sight(float(second), None, desired, desired, 0, 0, ongoing))  # type: ignore[arg-type]
        course.append(desired)
    assert course.index(4) == 51


def test_serves_factors_scale_the_difference_and_never_stand_still():
    rule = ServeRule(1, 10, upscale_delay_s=0.0, downscale_delay_s=0.0, look_back_period_s=0.0)
    slow = replace(rule, upscaling_factor=0.5, downscaling_factor=0.1)
    assert ServesDefault(slow).desired(Sight(0.0, None, 2, 2, 0, 0, 20)) == 6  # type: ignore[arg-type]
    assert ServesDefault(slow).desired(Sight(0.0, None, 3, 3, 0, 0, 4)) == 2  # type: ignore[arg-type]


def test_our_policy_follows_a_burst_up_and_down_again():
    burst = [Arrival(60 + at / 20, Lengths(150, 20)) for at in range(400)]
    calm = [Arrival(at * 2.0, Lengths(150, 20)) for at in range(200)]
    given = fleet_load(calm + burst, Scaled(1.0, 1.0, 0.0))
    policy = ScalingPolicy(1, 8, first_token_target_s=2.0, lead_s=2.0, hold_s=20.0)
    sizer = Ours(policy)
    course = play_fleet(replace(SETTINGS, given=given, start=1), sizer, 8)
    most = max(size.ready for size in course.sizes)
    assert most > 2
    assert course.sizes[-5].ready < most
    assert {each.outcome for each in course.asked} == {Outcome.FINISHED}
    assert course.replica_s < most * given[-1].at_s
    assert len(sizer.decisions) >= 3


def test_copies_come_later_than_their_first_and_stretching_keeps_the_order():
    given = fleet_load(COURSE, Scaled(stretch=3.0, copies=2.5, spread_s=4.0))
    assert len(given) == pytest.approx(2.5 * len(COURSE), rel=0.05)
    assert [each.at_s for each in given] == sorted(each.at_s for each in given)
    assert given[0].at_s == 0.0
    assert given[-1].at_s <= 3.0 * COURSE[-1].at_s + 4.0


def test_the_shipped_course_has_as_many_requests_as_its_numbers_say():
    arrivals = fitted_arrivals()
    assert len(arrivals) == 5353
    assert max(rates_of(arrivals)) >= 300
    assert [each.at_s for each in arrivals] == sorted(each.at_s for each in arrivals)
    assert arrivals == fitted_arrivals()
