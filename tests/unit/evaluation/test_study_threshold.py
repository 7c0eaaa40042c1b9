from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from chairlift.evaluation.study_threshold import Bound, Group, State, decide

BOUND = Bound(at=1.8, least=True, ratio=True, every_round=False, significance=0.05)
NOT_WORSE = replace(BOUND, at=1.0, least=False)


def decided(*values: float | None, bound: Bound = BOUND, rounds: int | None = None) -> Group:
    return decide("all", values, len(values) if rounds is None else rounds, bound)


def test_six_rounds_on_the_right_side_pass() -> None:
    group = decided(1.9, 2.0, 1.95, 1.85, 2.1, 1.92)
    assert (group.state, group.p, group.p_against) == (State.PASSED, 1 / 64, 1.0)
    assert group.estimate == pytest.approx(1.935)
    assert group.interval is not None and group.interval[0] > 1.8
    assert group.more_rounds is None


def test_six_rounds_on_the_wrong_side_fail() -> None:
    group = decided(1.0, 1.01, 0.99, 1.0, 1.02, 1.0)
    assert (group.state, group.p, group.p_against) == (State.FAILED, 1.0, 1 / 64)


def test_an_upper_bound_is_the_other_way_round() -> None:
    low = [0.5, 0.6, 0.7, 0.5, 0.6, 0.9]
    assert decided(*low, bound=NOT_WORSE).state is State.PASSED
    assert decided(*low, bound=replace(NOT_WORSE, least=True)).state is State.FAILED


def test_under_six_rounds_nothing_is_decided_however_clear() -> None:
    group = decided(3.0, 3.1, 3.0, 2.9, 3.0)
    assert (group.state, group.more_rounds, group.interval) == (State.NOT_ENOUGH, 1, None)
    assert "6 rounds" in group.reason
    assert decided(0.1, 0.1).state is State.NOT_ENOUGH
    assert decided(0.1, 0.1).more_rounds == 4


def test_rounds_that_disagree_decide_nothing_and_say_how_many_more_it_takes() -> None:
    group = decided(1.7, 2.1, 1.75, 2.0, 1.7, 2.05)
    assert group.state is State.NOT_ENOUGH
    assert group.more_rounds is not None and group.more_rounds > 1
    assert f"{group.more_rounds} more" in group.reason
    level = decided(1.7, 1.8 * 1.8 / 1.7, 1.7, 1.8 * 1.8 / 1.7, 1.7, 1.8 * 1.8 / 1.7)
    assert (level.state, level.more_rounds) == (State.NOT_ENOUGH, None)


def test_a_value_on_the_bound_keeps_it() -> None:
    assert decided(*[1.0] * 6, bound=NOT_WORSE).state is State.PASSED
    assert decided(*[1.0] * 5, 0.5, bound=NOT_WORSE).state is State.PASSED
    assert decided(*[1.0] * 5, 1.5, bound=NOT_WORSE).state is State.NOT_ENOUGH


def test_values_without_end_count_but_do_not_outweigh_all_others() -> None:
    assert decided(*[inf] * 6, bound=NOT_WORSE).state is State.FAILED
    assert decided(*[0.0] * 6, bound=NOT_WORSE).state is State.PASSED
    mixed = decided(0.5, 0.6, 0.5, 0.6, 0.5, inf, bound=NOT_WORSE)
    assert mixed.state is State.NOT_ENOUGH


def test_one_round_that_breaks_what_must_always_hold_is_enough() -> None:
    equal = Bound(at=1.0, least=True, ratio=False, every_round=True, significance=0.05)
    assert decided(1.0, 0.99, bound=equal).state is State.FAILED
    few = decided(1.0, 1.0, bound=equal)
    assert (few.state, few.more_rounds, few.p) == (State.NOT_ENOUGH, 4, None)
    assert decided(*[1.0] * 6, bound=equal).state is State.PASSED


def test_a_round_without_a_value_is_no_pass_but_a_void_one_does_not_count() -> None:
    values = (2.0, 2.1, 2.0, None, 2.2, 2.0, 2.1)
    missing = decided(*values, rounds=7)
    assert (missing.state, missing.more_rounds) == (State.NOT_ENOUGH, None)
    assert "1 more have no such value" in missing.reason
    assert decided(None, None).reason == "no run has such a value"
    assert decided(*values, rounds=6).state is State.PASSED


def test_among_many_groups_it_takes_more_to_fail_but_no_more_to_pass() -> None:
    among = replace(BOUND, groups=8)
    bad = decided(1.2, 1.3, 1.2, 1.25, 1.2, 1.3, bound=among)
    assert (bad.state, bad.p_against) == (State.NOT_ENOUGH, 8 / 64)
    assert bad.more_rounds == 2
    assert decided(*[1.2, 1.3] * 4, bound=among).state is State.FAILED
    assert decided(*[2.0, 2.1] * 3, bound=among).state is State.PASSED
