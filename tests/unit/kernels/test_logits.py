from __future__ import annotations

import numpy as np
import pytest
import torch

from chairlift.kernels import reference
from chairlift.kernels.logits import Adjustment, adjust, clean

VOCABULARY = 60
LARGEST = float(np.finfo(np.float32).max)


def ints(*tokens):
    return np.array(tokens, np.int64)


def row(seed=0, scale=4.0):
    random = np.random.default_rng(seed)
    return (scale * random.standard_normal(VOCABULARY)).astype(np.float32)


def adjusted(logits, **asked):
    logits = np.array(logits, np.float32)
    adjust(logits, Adjustment(**asked))
    return logits


PROMPT, OUTPUT = ints(3, 3, 9, 20), ints(9, 9, 9, 4, 59)
ASKED = {
    "bias": {"biased": ints(0, 7, 59), "bias": np.array([100, -100, 0.5], np.float32)},
    "repetition": {"repetition": 1.3, "prompt": PROMPT, "output": OUTPUT},
    "inverse repetition": {"repetition": 0.4, "prompt": PROMPT, "output": OUTPUT},
    "repetition of the prompt alone": {"repetition": 2.0, "prompt": PROMPT},
    "frequency": {"frequency": 0.7, "prompt": PROMPT, "output": OUTPUT},
    "presence": {"presence": -1.5, "prompt": PROMPT, "output": OUTPUT},
    "allowed": {"allowed": ints(1, 9, 58)},
    "forbidden": {"forbidden": ints(0, 2, 2)},
    "allowed and forbidden": {"allowed": ints(1, 9, 58), "forbidden": ints(2, 9)},
    "nothing": {},
}
ASKED["everything"] = {name: value for asked in ASKED.values() for name, value in asked.items()}


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("seed", range(5))
def test_the_rules_are_those_of_the_reference(name, seed):
    asked = Adjustment(**ASKED[name])
    logits = row(seed)
    expected = reference.adjusted(torch.from_numpy(logits).double(), asked)
    adjust(logits, asked)
    np.testing.assert_allclose(logits, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_each_penalty_by_hand():
    logits = [2.0, -2.0, 2.0, 2.0, 2.0]
    tokens = {"prompt": ints(0, 1), "output": ints(2, 3, 3)}
    assert adjusted(logits, **tokens, repetition=2.0).tolist() == [1, -4, 1, 1, 2]
    assert adjusted(logits, **tokens, presence=0.5).tolist() == [2, -2, 1.5, 1.5, 2]
    assert adjusted(logits, **tokens, frequency=0.5).tolist() == [2, -2, 1.5, 1, 2]
    everything = adjusted(logits, **tokens, repetition=2.0, frequency=0.25, presence=0.5)
    assert everything.tolist() == [1, -4, 0.25, 0, 2]


def test_the_bias_comes_before_the_penalties():
    bias = {"biased": ints(0), "bias": np.array([3], np.float32)}
    assert adjusted([-1.0, 0.0], **bias, repetition=2.0, prompt=ints(0)).tolist() == [1, 0]


def test_only_allowed_tokens_remain_and_keep_their_values():
    logits = np.random.default_rng(1).standard_normal(49152).astype(np.float32)
    allowed = np.sort(np.random.default_rng(2).choice(49152, 2000, replace=False))
    after = adjusted(logits, allowed=allowed)
    assert np.flatnonzero(after > -np.inf).tolist() == allowed.tolist()
    assert np.array_equal(after[allowed], logits[allowed])


def test_when_nothing_would_remain_the_forbidden_are_not_forbidden():
    logits = [1.0, 2.0, 3.0]
    both = adjusted(logits, allowed=ints(1, 2), forbidden=ints(1, 2))
    assert both.tolist() == [-np.inf, 2, 3]
    assert adjusted(logits, forbidden=ints(0, 1, 2)).tolist() == logits


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_hostile_values_never_outlive_the_masks(value):
    """A token that is not allowed stays behind one whose logit is the worst there can be."""
    after = adjusted(
        [value] * 3,
        biased=ints(0, 1, 2),
        bias=np.full(3, 100, np.float32),
        repetition=1e-6,
        prompt=ints(0, 1, 2),
        output=ints(2),
        presence=2.0,
        allowed=ints(1, 2),
    )
    assert after[0] == -np.inf
    assert np.isfinite(after[1:]).all()


def test_overflow_is_the_largest_number_and_no_infinity():
    after = adjusted([3e38, -3e38], repetition=0.1, prompt=ints(0), output=ints(1), presence=2.0)
    assert after.tolist() == [LARGEST, pytest.approx(-3e37)]


def test_a_row_with_a_largest_number_is_clean_as_it_is():
    logits = np.array([-np.inf, 2.0], np.float32)
    assert clean(logits) is logits


def test_cleaning_leaves_the_row_alone():
    logits = np.array([np.nan, np.inf, 1.0, -np.inf], np.float32)
    assert clean(logits).tolist() == [-LARGEST, LARGEST, 1, -LARGEST]
    assert np.isnan(logits[0])
