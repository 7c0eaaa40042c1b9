"""From logits to tokens: greedy, temperature, min-p, top-k, top-p.

Owns the rules below, and what they come to in numpy; ``kernels/cpu/sampling.cpp`` has them once
more. Draws no random numbers itself: a row's uniform number comes from ``kernels.philox``. A row's
token is a function of that row's numbers alone: rows are computed one by one, each by one thread,
and nothing but the row decides in which order sums are taken.

1. A logit that is not a number counts as the least, infinities as the largest and least finite
   float32, in rows whose largest logit is not finite: every row has a result.
2. Temperature below 1e-5 is greedy: the first token of the largest logit. Nothing else applies.
3. Otherwise a token has a weight, its probability relative to that of the likeliest: e to the
   power of its logit less the largest, times 1 / temperature; each step is rounded to float32.
   Tokens are ranked by their logits; of equal ones the first is ranked likelier. They drop out in
   vLLM's order: ``min_p``, those of less weight; ``top_k``, all but the ``k`` likeliest;
   ``top_p``, those before which the likelier ones of the rest already hold ``top_p`` of its mass.
   At least one always remains.
4. The token is the first at which the running sum of the remaining weights, in order of token
   ids, exceeds the uniform number's share of their total (inverse transform sampling).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.logits import clean

__all__ = ["likeliest", "sample"]

Ints = NDArray[np.int64]
Weights = NDArray[np.float32]

_GREEDY_BELOW = 1e-5
_STRETCH = 256  # tokens that are summed up at once where running sums are only searched
_LIKELY = 1e-3  # of the likeliest token's weight


def sample(
    logits: NDArray[np.float32],
    temperature: NDArray[np.float32],
    top_k: Ints,
    top_p: NDArray[np.float64],
    min_p: NDArray[np.float32],
    *,
    uniform: NDArray[np.float64],
) -> Ints:
    """Choose one token for each row.

    Args:
        logits: (rows, vocabulary).
        temperature: (rows,); 0 is greedy.
        top_k: (rows,); 0 is off.
        top_p: (rows,) in (0, 1]; 1 is off.
        min_p: (rows,) in [0, 1]; 0 is off.
        uniform: (rows,) in [0, 1).

    Returns:
        (rows,)
    """
    tokens: Ints = logits.argmax(axis=1)
    largest = np.take_along_axis(logits, tokens[:, None], axis=1)[:, 0]
    for index in np.flatnonzero(~np.isfinite(largest)):
        tokens[index] = clean(logits[index]).argmax()
    truncated = (top_k > 0) | (top_p < 1.0) | (min_p > 0.0)
    for index in np.flatnonzero(temperature >= _GREEDY_BELOW):
        row = clean(logits[index])
        weights = _weights(row, tokens[index], temperature[index])
        if truncated[index]:
            rules = int(top_k[index]), float(top_p[index]), min_p[index]
            kept = _truncate(row, weights, *rules)
            tokens[index] = kept[_draw(weights[kept], uniform[index])]
        else:
            tokens[index] = _draw(weights, uniform[index])
    return tokens


def likeliest(values: Weights, count: int) -> Ints:
    """Where the ``count`` largest values stand, ascending; of equals the first are taken.

    Args:
        values: (n,) not NaN.
        count: 1 at least; with fewer values, all.
    """
    if count >= len(values):
        return np.arange(len(values))
    least = np.partition(values, -count)[-count]
    above = np.flatnonzero(values > least)
    ties = np.flatnonzero(values == least)[: count - len(above)]
    return np.sort(np.concatenate([above, ties]))


def _weights(row: Weights, best: np.int64, temperature: np.float32) -> Weights:
    """Probabilities relative to that of ``best``, the likeliest token."""
    with np.errstate(over="ignore"):  # a difference of the two ends of float32
        weights: Weights = row - row[best]
        weights *= np.float32(1) / temperature
    np.exp(weights, out=weights)
    return weights


def _truncate(row: Weights, weights: Weights, top_k: int, top_p: float, min_p: np.float32) -> Ints:
    """The tokens that min-p, top-k and top-p leave, ascending."""
    kept = np.flatnonzero(weights >= min_p) if min_p else np.arange(len(weights))
    if top_k:
        kept = kept[likeliest(row[kept], top_k)]
    if top_p < 1.0:
        kept = kept[likeliest(row[kept], _nucleus(weights[kept], top_p))]
    return kept


def _nucleus(weights: Weights, top_p: float) -> int:
    """How many of the likeliest tokens hold ``top_p`` of the mass; as few as do.

    Few tokens hold nearly all of it as a rule, so only those are sorted, if they are enough.
    """
    limit = top_p * weights.sum(dtype=np.float64)
    falling = np.sort(weights[weights >= _LIKELY])[::-1]
    mass = falling.cumsum(dtype=np.float64)
    if mass[-1] < limit:
        falling = np.sort(weights)[::-1]
        mass = falling.cumsum(dtype=np.float64)
    return min(int(np.searchsorted(mass, limit)) + 1, len(falling))


def _draw(weights: Weights, uniform: float) -> int:
    """The first index at which the running sum exceeds the share ``uniform`` of the total.

    The running sums of stretches find the right one; only within it all are computed.
    """
    starts = np.arange(0, len(weights), _STRETCH)
    mass = np.add.reduceat(weights, starts, dtype=np.float64).cumsum()
    target = min(uniform * mass[-1], np.nextafter(mass[-1], 0.0))
    stretch = int(np.searchsorted(mass, target, side="right"))
    before = mass[stretch - 1] if stretch else 0.0
    inside = weights[starts[stretch] : starts[stretch] + _STRETCH]
    possible = np.flatnonzero(inside)
    running = before + inside[possible].cumsum(dtype=np.float64)
    # The two sums of a stretch may differ in their last bits.
    found = min(int(np.searchsorted(running, target, side="right")), len(possible) - 1)
    return int(starts[stretch] + possible[found])
