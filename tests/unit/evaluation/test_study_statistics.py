from __future__ import annotations

import random
from itertools import product
from statistics import NormalDist, fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.evaluation.study_statistics import (
    block_interval,
    median_interval,
    rounds_needed,
    samples_needed,
    sign_flip,
)


@given(st.lists(st.integers(-9, 9), max_size=8))
def test_the_test_counts_all_ways_to_flip_signs(differences: list[int]) -> None:
    ways = [
        sum(sign * each for sign, each in zip(signs, differences, strict=True))
        for signs in product((1, -1), repeat=len(differences))
    ]
    expected = fmean(way >= sum(differences) for way in ways)
    assert sign_flip(differences) == pytest.approx(expected)


def test_six_rounds_that_agree_have_one_way_in_64() -> None:
    assert sign_flip([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]) == 1 / 64
    assert sign_flip([-0.1] * 6) == 1.0


def test_equal_sums_count_although_they_are_rounded() -> None:
    assert sign_flip([0.1, 0.2, -0.3]) == 5 / 8  # 0.1 + 0.2 − 0.3 is not quite 0


def test_many_rounds_are_sampled_close_to_the_exact_p() -> None:
    differences = [1.0] * 13 + [-1.0] * 7  # 13 or more of 20 heads: 0.1316
    assert sign_flip(differences) == pytest.approx(0.1316, abs=0.006)
    assert sign_flip(differences) == sign_flip(differences)
    assert 0 < sign_flip([1.0] * 40) < 1e-4


def test_under_chance_p_is_seldom_small() -> None:
    drawn = random.Random(7)
    small = sum(sign_flip([drawn.gauss(0, 1) for _ in range(8)]) <= 0.05 for _ in range(2_000))
    assert 0.03 < small / 2_000 < 0.06


def test_an_interval_of_the_median_holds_it_and_stays_among_the_values() -> None:
    values = [1.9, 1.7, 1.8, 2.0, 1.85, 1.75, 3.0]
    low, high = median_interval(values, 0.05)
    assert min(values) <= low < 1.85 < high < 3.0
    assert median_interval(values, 0.05) == (low, high)
    assert median_interval([2.0] * 6, 0.05) == (2.0, 2.0)
    with pytest.raises(ValueError, match="no values"):
        median_interval([], 0.05)


def test_an_interval_bears_values_without_end() -> None:
    low, high = median_interval([1.0, 2.0, 3.0, float("inf"), float("inf"), float("inf")], 0.05)
    assert low <= 2.0
    assert high == float("inf")


def test_intervals_of_a_mean_are_as_wide_as_theory_says() -> None:
    drawn = random.Random(3)
    blocks = [[drawn.gauss(10, 2) for _ in range(5)] for _ in range(40)]
    told = block_interval(blocks, fmean, 0.05, draws=1_000)
    assert told is not None
    wide = 2 * NormalDist().inv_cdf(0.95) * 2 / 200**0.5
    assert told[1] - told[0] == pytest.approx(wide, rel=0.3)


def test_blocks_keep_together_what_belongs_together() -> None:
    """Drawn one by one, values that come in runs would look far surer than they are."""
    drawn = random.Random(3)
    blocks = [[level] * 50 for level in (drawn.gauss(10, 2) for _ in range(20))]
    alone = [[value] for block in blocks for value in block]
    together, apart = (block_interval(each, fmean, 0.05) for each in (blocks, alone))
    assert together is not None and apart is not None
    assert together[1] - together[0] > 4 * (apart[1] - apart[0])


def test_without_blocks_or_figures_there_is_no_interval() -> None:
    assert block_interval([], fmean, 0.05) is None
    assert block_interval([[1.0]], lambda values: None, 0.05) is None


@pytest.mark.parametrize(("misses", "samples"), [(0, 459), (1, 662), (2, 838), (5, 1_307)])
def test_how_many_requests_show_that_a_p99_is_kept(misses: int, samples: int) -> None:
    assert samples_needed(misses) == samples


def test_so_many_rounds_are_needed_as_then_decide_it_four_times_in_five() -> None:
    drawn = random.Random(5)
    seen = [0.3, -0.5, 1.2, 0.9, -0.1, 0.6, 0.2, 0.7]
    number = rounds_needed(seen, 0.05)
    assert number is not None and number > 8
    spread = (sum((each - fmean(seen)) ** 2 for each in seen) / 7) ** 0.5
    decided = sum(
        sign_flip([drawn.gauss(fmean(seen), spread) for _ in range(number)]) <= 0.05
        for _ in range(500)
    )
    assert 0.7 < decided / 500 < 0.9


def test_no_fewer_rounds_than_a_test_can_decide_with() -> None:
    assert rounds_needed([], 0.05) == rounds_needed([5.0], 0.05) == 6
    assert rounds_needed([5.0, 5.1], 0.05) == 6
    assert rounds_needed([5.0, 5.0], 0.01) == 7
    assert rounds_needed([0.0, 0.0], 0.05) is None
    assert rounds_needed([1.0, -1.001], 0.05) is None
