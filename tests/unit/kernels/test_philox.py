from __future__ import annotations

import numpy as np
import pytest

from chairlift.kernels.philox import philox_4x32, uniform


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        (
            "00000000 00000000 00000000 00000000",
            "00000000 00000000",
            "6627e8d5 e169c58d bc57ac4c 9b00dbd8",
        ),
        (
            "ffffffff ffffffff ffffffff ffffffff",
            "ffffffff ffffffff",
            "408f276d 41c83b0e a20bc7c6 6d5451fd",
        ),
        (
            "243f6a88 85a308d3 13198a2e 03707344",
            "a4093822 299f31d0",
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_known_answers_of_random123(counter, key, expected):
    assert philox_4x32(words(counter), words(key)).tolist() == words(expected).tolist()


def test_rows_do_not_depend_on_each_other():
    random = np.random.default_rng(0)
    seed, choice, position = random.integers(0, 2**32, (3, 100), dtype=np.uint64)
    together = uniform(seed, choice, position)
    alone = [
        uniform(seed[i : i + 1], choice[i : i + 1], position[i : i + 1])[0] for i in range(100)
    ]
    assert together.tolist() == alone


@pytest.mark.parametrize("changed", ["seed", "high half of the seed", "choice", "position"])
def test_every_argument_changes_the_number(changed):
    arguments = {"seed": 7, "choice": 0, "position": 3}
    other = dict(arguments)
    if changed == "high half of the seed":
        other["seed"] += 1 << 32
    else:
        other[changed] += 1
    assert one(**arguments) != one(**other)
    assert one(**arguments) != one(**arguments, purpose=1)


def test_the_largest_seed_is_a_seed():
    assert 0 <= one(seed=2**64 - 1, choice=0, position=0) < 1


def test_numbers_are_spread_evenly():
    rows = 100_000
    numbers = uniform(
        np.full(rows, 42, np.uint64), np.zeros(rows, np.uint64), np.arange(rows, dtype=np.uint64)
    )
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.bincount((numbers * 100).astype(int), minlength=100)
    chi_square = ((counts - rows / 100) ** 2 / (rows / 100)).sum()
    assert chi_square < 149  # 99 degrees of freedom: exceeded once in a thousand seeds
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01


def words(text):
    return np.array([int(word, 16) for word in text.split()], np.uint64)[:, None]


def one(*, seed, choice, position, purpose=0):
    column = [np.array([value], np.uint64) for value in (seed, choice, position)]
    return float(uniform(*column, purpose)[0])
