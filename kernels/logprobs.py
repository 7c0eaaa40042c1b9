"""How likely tokens are: logarithms of their probabilities, and which are the likeliest.

Owns log-softmax, for one row at a time, so that a row's values never depend on its company.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.logits import clean
from chairlift.kernels.sampling import likeliest

__all__ = ["log_probabilities"]


def log_probabilities(
    logits: NDArray[np.float32], token: int, count: int
) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Natural logarithms of probabilities, never NaN.

    Args:
        logits: (vocabulary,); −∞ is a token that cannot be chosen, and stays −∞.
        token: whose value comes first.
        count: of the likeliest tokens; with fewer in the vocabulary, all.

    Returns:
        The token's value; the likeliest tokens with theirs, in falling order, of equals the lower
        token first.
    """
    row = clean(logits)
    largest = row.max()
    log_sum = _log_sum_exp(row, largest)

    def value(each: int) -> float:
        return (float(row[each]) - float(largest)) - log_sum

    if not count:
        return value(token), ()
    ascending = likeliest(row, count)
    ranked = ascending[np.argsort(-row[ascending], kind="stable")].tolist()
    return value(token), tuple((each, value(each)) for each in ranked)


def _log_sum_exp(row: NDArray[np.float32], largest: np.float32) -> float:
    """Of the row minus its largest: 0 or more. The sum's order depends on the length alone."""
    with np.errstate(over="ignore"):  # a difference of the two ends of float32
        weights = row - largest
    return math.log(np.exp(weights, out=weights).sum(dtype=np.float64))
