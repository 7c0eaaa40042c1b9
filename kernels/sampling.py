"""From logits to tokens: greedy, temperature, min-p, top-k, top-p.

Owns the rules below. Draws no random numbers itself: a row's uniform number comes from
``kernels.philox``. A row's token is a function of that row's numbers alone; no sum ever runs
across rows, nor in an order that depends on how many rows there are.

1. A logit that is not a number counts as the least, infinities as the largest and least finite
   float32: every row has a result.
2. Temperature below 1e-5 is greedy: the first token of the largest logit. Nothing else applies.
3. Otherwise logits are divided by the temperature. Then tokens drop out in vLLM's order:
   ``min_p``, those less than ``min_p`` times as likely as the likeliest; ``top_k``, all but the
   ``k`` likeliest; ``top_p``, those before which the likelier ones of the rest already hold
   ``top_p`` of its mass. Of equally likely tokens the first is ranked likelier, so exactly ``k``
   remain; at least one always remains.
4. The token is the first at which the running sum of probabilities, in order of token ids,
   exceeds the uniform number (inverse transform sampling).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["sample"]

_GREEDY_BELOW = 1e-5
_ROWS_AT_A_TIME = 8  # keeps the running sums in the processor's cache


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    *,
    uniform: Tensor,
) -> Tensor:
    """Choose one token for each row.

    Args:
        logits: (rows, vocabulary) float32.
        temperature: (rows,) float32; 0 is greedy.
        top_k: (rows,) int64; 0 is off.
        top_p: (rows,) float64 in (0, 1]; 1 is off.
        min_p: (rows,) float32 in [0, 1]; 0 is off.
        uniform: (rows,) float64 in [0, 1).

    Returns:
        (rows,) int64.
    """
    largest, tokens = logits.max(dim=-1)
    if not bool(largest.isfinite().all()):
        limit = torch.finfo(torch.float32).max
        logits = logits.nan_to_num(-limit, limit, -limit)
        largest, tokens = logits.max(dim=-1)
    random = (temperature >= _GREEDY_BELOW).nonzero()[:, 0]
    for first in range(0, len(random), _ROWS_AT_A_TIME):
        rows = random[first : first + _ROWS_AT_A_TIME]
        weights = logits[rows].sub_(largest[rows, None]).div_(temperature[rows, None]).exp_()
        weights.masked_fill_(weights < min_p[rows, None], 0.0)
        _drop_unlikely(weights, top_k[rows], top_p[rows])
        mass = weights.cumsum(-1, dtype=torch.float64)
        total = mass[:, -1]
        target = torch.minimum(uniform[rows] * total, total.nextafter(total.new_zeros(())))
        tokens[rows] = torch.searchsorted(mass, target[:, None], right=True)[:, 0]
    return tokens


def _drop_unlikely(weights: Tensor, top_k: Tensor, top_p: Tensor) -> None:
    """Zero what top-k and top-p leave out; only rows that ask for either are looked at."""
    for row, (k, p) in enumerate(zip(top_k.tolist(), top_p.tolist(), strict=True)):
        if k:
            _keep_likeliest(weights[row].numpy(), None, k)
        if p < 1.0:
            mass = weights[row].numpy().astype(np.float64)
            _keep_likeliest(weights[row].numpy(), mass, p * mass.sum())


def _keep_likeliest(
    weights: NDArray[np.float32], measure: NDArray[np.float64] | None, limit: float
) -> None:
    """Zero the tokens before which the likelier ones measure ``limit`` or more, in place.

    A radix selection: the upper half of a non-negative float's bits is a bin that rises with
    its value, so one pass finds the bin in which the limit falls, and only that bin, whose values
    differ by less than a hundredth, is sorted.

    Args:
        weights: (vocabulary,) not negative.
        measure: (vocabulary,) of each token; None counts tokens.
        limit: above 0.
    """
    bins = (weights.view(np.uint32) >> 16).astype(np.intp)
    through = np.bincount(bins, measure)[::-1].cumsum()  # from the likeliest bin down
    crossing = min(int(np.searchsorted(through, limit)), len(through) - 1)
    last_bin = len(through) - 1 - crossing
    inside = np.flatnonzero(bins == last_bin)
    ranked = inside[np.argsort(-weights[inside], kind="stable")]
    before = through[crossing - 1] if crossing else 0.0
    each = np.ones(len(ranked)) if measure is None else measure[ranked]
    dropped = ranked[before + np.cumsum(each) - each >= limit]
    weights[bins < last_bin] = 0.0
    weights[dropped] = 0.0
