import math
import pickle

import pytest

from chairlift.cluster.sketch import ACCURACY, Sketch


def sketch(*values: float) -> Sketch:
    made = Sketch()
    for value in values:
        made.add(value)
    return made


def test_a_quantile_is_close_to_the_number_of_that_rank():
    numbers = sketch(*(each / 1000 for each in range(1, 1001)))
    for share, exact in [(0, 0.001), (0.5, 0.5), (0.95, 0.95), (0.99, 0.99), (1, 1.0)]:
        assert numbers.quantile(share) == pytest.approx(exact, rel=ACCURACY)


def test_without_numbers_there_is_neither_quantile_nor_mean():
    assert Sketch().quantile(0.5) is None
    assert Sketch().mean is None


def test_a_weight_counts_as_that_many_numbers():
    weighted = Sketch()
    weighted.add(1.0, 99)
    weighted.add(50.0)
    assert weighted.count == 100
    assert weighted.mean == pytest.approx(1.49)
    assert weighted.quantile(0.5) == pytest.approx(1.0, rel=ACCURACY)
    assert weighted.quantile(1) == pytest.approx(50.0, rel=ACCURACY)


def test_merging_is_as_if_all_numbers_were_one_senders():
    one, other = sketch(0.1, 2.0, 2.0), sketch(2.0, 30.0)
    one.merge(other)
    assert one == sketch(0.1, 2.0, 2.0, 2.0, 30.0)
    assert other == sketch(2.0, 30.0)


def test_a_copy_goes_its_own_way():
    first = sketch(1.0)
    second = first.copy()
    second.add(2.0)
    assert first == sketch(1.0)
    assert second == sketch(1.0, 2.0)


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-9, 1e9, math.inf])
def test_what_is_out_of_reach_counts_as_the_smallest_or_the_largest(value: float):
    quantile = sketch(value).quantile(0.5)
    assert quantile == pytest.approx(1e-6 if value < 1 else 1e6, rel=ACCURACY)


def test_the_memory_of_a_million_kinds_of_numbers_is_bounded():
    numbers = Sketch()
    for exponent in range(-20_000, 20_000):
        numbers.add(1.001**exponent)
    assert len(pickle.dumps(numbers)) < 30_000


def test_it_survives_a_journey():
    numbers = sketch(0.5, 0.5, 7.0)
    assert pickle.loads(pickle.dumps(numbers)) == numbers
