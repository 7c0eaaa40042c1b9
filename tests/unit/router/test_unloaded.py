"""Slowdown: how much longer a request took than the best ones let expect."""

import pytest

from chairlift.router.unloaded import Unloaded


def test_the_first_request_is_its_own_measure():
    assert Unloaded().slowdown(100, 20, 0.5, 3.0) == 1.0


def test_a_request_is_compared_with_the_best_first_token_and_the_best_pace():
    unloaded = Unloaded()
    unloaded.slowdown(100, 11, 0.1, 0.1 + 10 * 0.02)
    assert unloaded.slowdown(100, 11, 0.4, 0.4 + 10 * 0.02) == pytest.approx(0.6 / 0.3)
    assert unloaded.slowdown(100, 21, 0.1, 0.1 + 20 * 0.04) == pytest.approx(0.9 / 0.5)


def test_a_longer_prompt_may_take_longer():
    unloaded = Unloaded()
    unloaded.slowdown(1000, 11, 1.0, 1.2)
    unloaded.slowdown(10, 11, 0.1, 0.3)
    assert unloaded.slowdown(500, 11, 1.0, 1.2) == pytest.approx(1.2 / 0.7)
    assert unloaded.slowdown(1, 11, 0.2, 0.4) == pytest.approx(0.4 / 0.3), "no less than a step"


def test_short_outputs_teach_nothing_about_the_pace():
    unloaded = Unloaded()
    unloaded.slowdown(10, 2, 0.1, 0.1 + 1e-9)
    assert unloaded.slowdown(10, 11, 0.1, 0.3) == pytest.approx(1.0)


@pytest.mark.parametrize("length", [0, 1])
def test_requests_without_a_pace_or_without_any_time_have_a_slowdown(length):
    unloaded = Unloaded()
    assert unloaded.slowdown(0, length, 0.0, 0.0) == 1.0
    assert unloaded.slowdown(5, length, 0.5, 0.5) >= 1.0
