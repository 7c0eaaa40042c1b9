from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chairlift.evaluation.batching_ceiling import continuous_steps, static_steps


def test_a_batch_takes_as_long_as_its_longest_output() -> None:
    assert static_steps([1, 9, 2, 2, 5], seats=2) == 9 + 2 + 5


def test_continuous_needs_all_tokens_over_all_seats() -> None:
    assert continuous_steps([1, 9, 2, 2, 6], seats=2) == 10


def test_continuous_cannot_end_before_the_longest_output() -> None:
    assert continuous_steps([1, 9], seats=2) == 9


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(1, 8))
def test_static_is_never_better_and_sorting_never_worse_for_full_batches(
    outputs: list[int], seats: int
) -> None:
    assert 1 <= static_steps(outputs, seats) / continuous_steps(outputs, seats) <= seats
    if len(outputs) % seats == 0:
        assert static_steps(sorted(outputs), seats) <= static_steps(outputs, seats)
