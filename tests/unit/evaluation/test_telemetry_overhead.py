"""What is made of the speeds with and without telemetry."""

from __future__ import annotations

import pytest

from chairlift.evaluation.telemetry_overhead import costs


def test_each_pair_is_compared_whatever_came_first():
    speeds = [(False, 100.0), (True, 98.0), (True, 99.0), (False, 90.0)]
    assert costs(speeds) == pytest.approx([0.02, -0.1])


def test_two_runs_of_the_same_kind_are_no_pair():
    with pytest.raises(KeyError):
        costs([(True, 1.0), (True, 2.0)])
