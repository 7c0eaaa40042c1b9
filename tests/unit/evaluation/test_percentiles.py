from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.evaluation.percentiles import (
    Percentiles,
    percentiles,
    quantile,
    weighted_percentiles,
)


def test_a_percentile_is_the_smallest_value_that_covers_its_share() -> None:
    twenty = [float(value) for value in range(20, 0, -1)]
    assert percentiles(twenty) == Percentiles(mean=10.5, p50=10.0, p95=19.0, p99=20.0, count=20.0)


def test_a_single_value_is_every_percentile() -> None:
    assert percentiles([3.0]) == Percentiles(3.0, 3.0, 3.0, 3.0, 1.0)


def test_no_values_have_no_percentiles() -> None:
    assert percentiles([]) is None
    assert weighted_percentiles([(1.0, 0.0)]) is None


def test_a_weight_counts_as_so_many_values() -> None:
    # 1 (×6) 2 (×3) 9 (×1): half of the weight is covered by 1, 90% by 2.
    assert weighted_percentiles([(9.0, 1.0), (1.0, 6.0), (2.0, 3.0)]) == Percentiles(
        mean=2.1, p50=1.0, p95=9.0, p99=9.0, count=10.0
    )


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(1, 5)), min_size=1))
def test_whole_weights_equal_repeated_values(pairs: list[tuple[float, int]]) -> None:
    repeated = [value for value, weight in pairs for _ in range(weight)]
    weighted, single = weighted_percentiles(pairs), percentiles(repeated)
    assert weighted is not None and single is not None
    assert weighted.mean == pytest.approx(single.mean)
    assert replace(weighted, mean=single.mean) == single


@given(st.lists(st.integers(-99, 99), min_size=1, max_size=200))
def test_one_quantile_is_the_one_among_the_percentiles(values: list[int]) -> None:
    told = percentiles(map(float, values))
    assert told is not None
    assert (quantile(values, 0.5), quantile(values, 0.99)) == (told.p50, told.p99)
    assert quantile([], 0.5) is None
