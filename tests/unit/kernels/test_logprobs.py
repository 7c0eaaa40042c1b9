from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from chairlift.kernels import reference
from chairlift.kernels.logprobs import log_probabilities


def row(vocabulary, scale=3.0, seed=0):
    random = np.random.default_rng(seed)
    return (scale * random.standard_normal(vocabulary)).astype(np.float32)


@pytest.mark.parametrize("vocabulary", [1, 2, 50, 49152])
@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
def test_values_are_those_of_log_softmax(vocabulary, scale):
    logits = row(vocabulary, scale)
    expected = torch.log_softmax(torch.from_numpy(logits).double(), 0)
    torch.testing.assert_close(
        reference.log_probabilities(torch.from_numpy(logits).double()), expected
    )
    chosen, top = log_probabilities(logits, vocabulary // 2, 20)
    assert chosen == pytest.approx(expected[vocabulary // 2].item(), abs=1e-5)
    values, tokens = expected.topk(min(20, vocabulary))
    assert [token for token, _ in top] == tokens.tolist()
    assert [value for _, value in top] == pytest.approx(values.tolist(), abs=1e-5)


def test_of_equally_likely_tokens_the_lower_comes_first():
    logits = np.array([1, 3, 0, 3, 3, 1], np.float32)
    assert [token for token, _ in log_probabilities(logits, 0, 5)[1]] == [1, 3, 4, 0, 5]
    assert [token for token, _ in log_probabilities(logits, 0, 2)[1]] == [1, 3]


def test_none_of_the_likeliest_when_none_is_asked_for():
    assert log_probabilities(np.array([0, 0], np.float32), 1, 0) == (
        pytest.approx(math.log(0.5)),
        (),
    )


def test_masked_tokens_are_impossible_and_a_single_one_is_certain():
    logits = np.array([-np.inf, 2, -np.inf], np.float32)
    assert log_probabilities(logits, 1, 3) == (0.0, ((1, 0.0), (0, -math.inf), (2, -math.inf)))
    assert log_probabilities(logits, 0, 0) == (-math.inf, ())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_without_any_number_count_as_all_alike(value):
    chosen, top = log_probabilities(np.full(4, value, np.float32), 2, 2)
    assert chosen == pytest.approx(math.log(0.25))
    assert top == ((0, chosen), (1, chosen))


@pytest.mark.parametrize(
    "logits", [[np.nan, 1, 2], [np.inf, 1, np.nan], [3e38, -3e38, -np.inf], [np.nan, -np.inf, 0]]
)
def test_hostile_rows_have_no_value_that_is_not_a_number(logits):
    chosen, top = log_probabilities(np.array(logits, np.float32), 1, 3)
    assert chosen <= 0
    assert all(value <= 0 for _, value in top)
    assert len(top) == 3


def test_bits_do_not_depend_on_threads_or_on_where_the_row_lies_in_memory():
    logits = row(49152)
    expected = log_probabilities(logits, 7, 5)
    memory = np.empty(49152 + 16, np.float32)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            for offset in range(16):
                moved = memory[offset : offset + 49152]
                moved[:] = logits
                assert log_probabilities(moved, 7, 5) == expected
    finally:
        torch.set_num_threads(before)
