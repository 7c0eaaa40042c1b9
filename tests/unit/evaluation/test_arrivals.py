from __future__ import annotations

import random
from itertools import islice, pairwise
from statistics import fmean, pstdev

import pytest

from chairlift.evaluation.arrivals import arrival_times, parse_arrivals


def gaps(kind: str, rate: float) -> list[float]:
    times = list(islice(arrival_times(parse_arrivals(kind), rate, random.Random(3)), 20_000))
    assert times[0] == 0.0
    return [later - earlier for earlier, later in pairwise(times)]


@pytest.mark.parametrize(("kind", "variation"), [("poisson", 1.0), ("gamma:3", 3.0)])
def test_gaps_have_the_mean_of_the_rate_and_their_variation(kind: str, variation: float) -> None:
    between = gaps(kind, rate=4.0)
    assert fmean(between) == pytest.approx(0.25, rel=0.1)
    assert pstdev(between) / fmean(between) == pytest.approx(variation, rel=0.1)


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert gaps("constant", rate=4.0) == [0.25] * 19_999


@pytest.mark.parametrize("text", ["", "burst", "gamma", "gamma:0", "gamma:x", "poisson:2"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="arrivals"):
        parse_arrivals(text)
