"""The cost of growth: what is made of measurements, and one small round of them."""

from __future__ import annotations

import math

import pytest

from chairlift.evaluation.growth import Dimension, draw, exponent, over_n_log_n, study, table


def test_the_exponent_is_that_of_the_power_law():
    assert exponent([(size, 3.0 * size**1.5) for size in (1, 10, 100)]) == pytest.approx(1.5)
    assert exponent([(size, 7.0) for size in (10, 1000)]) == pytest.approx(0.0)


def test_one_is_the_growth_of_n_log_n():
    """A cost per request that grows as the logarithm makes n log n of n requests."""
    assert over_n_log_n([(n, math.log2(1 + n)) for n in (10, 1000)]) == pytest.approx(1.0)
    assert over_n_log_n([(10, 1.0), (1000, 100.0)]) > 1.0


def test_a_small_round_serves_all_and_says_what_it_took():
    dimensions = [Dimension("replicas", (1, 3), 12), Dimension("in line", (2, 20), 10)]
    report, courses = study(dimensions, 1, lambda _: None, rest_s=0.0)
    assert len(report.claims) == 7
    for course in courses:
        assert all(sample.request_us > 0 for samples in course.samples for sample in samples)
    assert all(sample.token_us for samples in courses[0].samples for sample in samples)
    assert table(courses).count("\n") == 5
    assert draw(courses).count("<polyline") == 4
