"""The closed loop in simulated time: it repeats, loses nobody, and obeys what the Guard says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chairlift.cluster.guard_state import Mode, Rung
from chairlift.cluster.protocol import Priority
from chairlift.evaluation.guard_router import Asked
from chairlift.evaluation.guard_world import (
    Course,
    Fault,
    Traffic,
    World,
    WorldSettings,
    capacity,
    play,
)
from chairlift.router.metrics import Outcome

TENANTS = ("one", "two")
CALM = WorldSettings(tuple(Traffic(name, 5.0, lasts_s=20.0) for name in TENANTS), 40.0)
BURST = (Traffic("one", 50.0, 5.0, 15.0), Traffic("low", 10.0, 5.0, 15.0, priority=Priority.BATCH))


def told(course: Course) -> list[tuple[object, ...]]:
    """All that clients saw."""
    return [_told(each) for each in course.asked]


def _told(asked: Asked) -> tuple[object, ...]:
    return (
        asked.request.tenant,
        asked.arrived_at,
        asked.first_token_at,
        asked.ended_at,
        asked.outcome,
    )


@pytest.mark.parametrize("routers", [1, 2])
def test_everybody_who_asks_is_answered_in_full(routers: int) -> None:
    course = play(replace(CALM, routers=routers))
    assert len(course.asked) > 100
    assert {each.outcome for each in course.asked} == {Outcome.FINISHED}
    assert all(each.tokens == each.request.sampling.max_tokens for each in course.asked)


def test_a_course_follows_from_its_settings() -> None:
    settings = replace(CALM, traffic=CALM.traffic + BURST)
    one, other = play(settings), play(settings)
    assert told(one) == told(other)
    assert one.moves == other.moves
    assert told(play(replace(settings, seed=1))) != told(one)


def test_schedulers_are_sound_and_empty_after_a_burst() -> None:
    world = World(replace(CALM, traffic=CALM.traffic + BURST, duration_s=120.0))
    world.run()
    for replica in world.replicas:
        replica.scheduler.check_integrity()
        assert replica.scheduler.num_open == 0


def test_a_burst_moves_the_ladder_and_the_controls_reach_the_replicas() -> None:
    world = World(replace(CALM, traffic=CALM.traffic + BURST, duration_s=25.0))
    course = world.run()
    assert course.highest >= Rung.REFUSE_BEST_EFFORT
    assert course.at_s(course.moves[0]) > 5.0
    for replica in world.replicas:
        assert replica.scheduler.controls.version == course.looks[-2].state.controls.version > 0
    refused = [each for each in course.asked if each.outcome is Outcome.REJECTED]
    assert any(each.request.priority is Priority.BATCH for each in refused)


def test_a_guard_in_the_shadow_decides_and_changes_nothing() -> None:
    settings = replace(CALM, traffic=CALM.traffic + BURST)
    shadow, off = (play(replace(settings, mode=mode)) for mode in (Mode.SHADOW, Mode.OFF))
    assert told(shadow) == told(off)
    assert shadow.moves
    assert all(move.shadow for move in shadow.moves)
    assert not off.moves


def test_a_fault_breaks_what_it_says_from_its_time_on() -> None:
    def slow(world: World) -> None:
        world.replicas[0].slower = 3.0

    sound = play(replace(CALM, mode=Mode.OFF))
    broken = play(replace(CALM, mode=Mode.OFF), [Fault(10.0, slow)])
    early = sum(each.ended_at is not None and each.ended_at < 10.0 for each in sound.asked)
    assert early > 50
    assert told(broken)[: early - 20] == told(sound)[: early - 20]
    assert told(broken) != told(sound)


def test_capacity_is_what_the_seats_can_do() -> None:
    rate = capacity(CALM)
    seats = CALM.machine.seats * CALM.replicas
    fastest = seats / (20 * CALM.machine.base_s)  # 20 tokens a request, in steps that cost no more
    assert 0.3 * fastest < rate < fastest
