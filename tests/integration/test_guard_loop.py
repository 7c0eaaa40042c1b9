"""The whole loop in simulated time: each signal's fault is answered, and steady load is left alone.

Times are simulated, so that they can be claims.
"""

from __future__ import annotations

import pytest

from chairlift.cluster.guard_policy import GuardPolicy, load_policy
from chairlift.cluster.guard_state import Mode, Rung, Signal
from chairlift.evaluation.guard_crowd import crowd, saturation
from chairlift.evaluation.guard_faults import FAULTS, PLANTED_S, Planted, alone, answer, find
from chairlift.evaluation.guard_steady import (
    StudySettings,
    burst,
    excursions,
    harm,
    service_capacity,
    steady,
    ups,
)

SMALL = StudySettings(minutes=2.0, begin_s=30.0, lasts_s=15.0, whole_s=110.0, leave_for_s=4.0)


@pytest.fixture(scope="module")
def policy() -> GuardPolicy:
    return load_policy()


@pytest.fixture(scope="module")
def rate() -> float:
    return service_capacity(SMALL)


def test_there_is_a_fault_for_each_signal() -> None:
    assert [planted.signal for planted in FAULTS] == list(Signal)


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.signal.value)
def test_a_fault_is_answered_by_its_rung_and_owner_in_the_stated_time(
    planted: Planted, policy: GuardPolicy
) -> None:
    terms = policy.signals[planted.signal]
    course = planted.play(alone(policy, planted.signal))
    move = answer(course, terms)
    assert move is not None
    assert course.moves[0] is move, "nothing moved before"
    assert 0.0 < course.at_s(move) - PLANTED_S <= terms.within_s
    assert (move.signal, move.owner) == (planted.signal.value, terms.owner)


@pytest.mark.slow
@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.signal.value)
def test_it_is_answered_as_soon_where_all_signals_are_listened_to(
    planted: Planted, policy: GuardPolicy
) -> None:
    assert find(planted, policy).holds


def test_steady_load_moves_nothing(rate: float) -> None:
    assert ups(steady(SMALL, "poisson", 0, rate)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("arrivals", ["poisson", "gamma:2"])
def test_ten_minutes_of_steady_load_move_nothing(arrivals: str, rate: float) -> None:
    assert ups(steady(StudySettings(), arrivals, 1, rate)) == 0


def test_a_burst_does_less_harm_with_the_guard_which_then_comes_down(rate: float) -> None:
    on, off = (burst(SMALL, mode, 0, rate) for mode in (Mode.ACT, Mode.OFF))
    assert harm(on).not_in_time < harm(off).not_in_time
    assert harm(on).first_token_s < harm(off).first_token_s
    assert excursions(on) == 1
    rung = on.looks[-1].state.rung
    assert rung is Rung.NORMAL
    assert on.highest >= Rung.CUT_ADMISSION


@pytest.mark.parametrize("clients", [48, pytest.param(160, marks=pytest.mark.slow)])
def test_a_crowd_that_asks_again_at_once_is_served_in_time_and_starves_nobody(clients: int) -> None:
    """More clients than seats, for ever: a share of what comes means nothing to them."""
    on, off = (saturation(crowd(clients, 0.05, mode, 0, 60.0)) for mode in (Mode.ACT, Mode.OFF))
    assert on.in_time > 2 * off.in_time
    assert on.first_token_p99_s < off.first_token_p99_s
    assert on.ended > 0.8 * off.ended
    assert on.highest <= Rung.CUT_ADMISSION
