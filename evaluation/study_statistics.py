"""What may be concluded from rounds: tests, intervals, and how many rounds it takes.

Owns the arithmetic; knows nothing of runs or thresholds. The unit is a round: the requests of one
run share a queue and are no samples of their own. A round's difference is how far it lies on the
claimed side of a bound (below 0: on the other side).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from math import ceil, comb, log2
from statistics import NormalDist, fmean, stdev
from typing import TypeVar

import numpy as np

__all__ = [
    "LEAST_ROUNDS",
    "block_interval",
    "median_interval",
    "rounds_needed",
    "samples_needed",
    "sign_flip",
]

LEAST_ROUNDS = 6
"""Fewer decide nothing."""

T = TypeVar("T")

_SEED = 20_231_116
_EXACT = 16
_FLIPS = 50_000
_DRAWS = 10_000
_POWER = 0.8
_MOST_ROUNDS = 1_000
_ROUNDING = 1e-12


def sign_flip(differences: Sequence[float]) -> float:
    """The p of the one-sided sign-flip test, small where the differences lie above 0.

    The share of all ways to give the differences signs whose sum is at least the one seen; what is
    tested is that signs are a matter of chance. Exact for up to 16 differences; beyond, of signs
    drawn with a fixed seed, with the one seen among them. 1 without differences.
    """
    values = np.asarray(differences, dtype=float)
    least = values.sum() - _ROUNDING * np.abs(values).sum()
    if len(values) <= _EXACT:
        sums = np.zeros(1)
        for value in values:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(sums >= least))
    random = np.random.default_rng(_SEED)
    seen = sum(
        int(np.sum(random.choice([-1.0, 1.0], size=(1_000, len(values))) @ values >= least))
        for _ in range(_FLIPS // 1_000)
    )
    return (seen + 1) / (_FLIPS + 1)


def median_interval(values: Sequence[float], tail: float) -> tuple[float, float]:
    """Bootstrap interval of the median over rounds, which leaves out ``tail`` on each side.

    Percentiles of 10,000 resamples of a fixed seed; the values may be infinite. Raises ValueError
    without values.
    """
    ordered = np.sort(np.asarray(values, dtype=float))
    if not len(ordered):
        raise ValueError("no values")
    drawn = np.random.default_rng(_SEED).integers(len(ordered), size=(_DRAWS, len(ordered)))
    # The middle by rank, the lower and the upper one in turn where there are two: an average of
    # them could be of two infinities.
    ranks = np.sort(drawn, axis=1)
    middle = ranks[:, (len(ordered) - 1) // 2]
    middle[::2] = ranks[::2, len(ordered) // 2]
    medians = np.sort(middle)
    low, high = int(tail * _DRAWS), ceil((1 - tail) * _DRAWS) - 1
    return float(ordered[medians[low]]), float(ordered[medians[high]])


def block_interval(
    blocks: Sequence[Sequence[T]],
    figure: Callable[[Sequence[T]], float | None],
    tail: float,
    draws: int = 200,
) -> tuple[float, float] | None:
    """Bootstrap interval of a figure of one run, from blocks of its time drawn with replacement.

    Blocks keep what follows closely together, as requests that wait in one queue do. It tells of
    noise within the run, not of what differs between runs. None where ``figure`` is None for each
    draw, or without blocks.
    """
    if not blocks:
        return None
    random = np.random.default_rng(_SEED)
    told = (
        figure(
            list(
                chain.from_iterable(
                    blocks[i] for i in random.integers(len(blocks), size=len(blocks))
                )
            )
        )
        for _ in range(draws)
    )
    ordered = sorted(value for value in told if value is not None)
    if not ordered:
        return None
    return ordered[int(tail * len(ordered))], ordered[ceil((1 - tail) * len(ordered)) - 1]


def samples_needed(misses: int, quantile: float = 0.99, confidence: float = 0.99) -> int:
    """How many requests show that a quantile is kept, if so many of them miss it.

    The least number of which so few misses, were the quantile just broken, come with a chance of
    1 − ``confidence`` at most.
    """
    rate = 1 - quantile
    number = misses + 1
    while _few(number, misses, rate) > 1 - confidence:
        number += 1
    return number


def _few(number: int, misses: int, rate: float) -> float:
    return sum(comb(number, k) * rate**k * (1 - rate) ** (number - k) for k in range(misses + 1))


def rounds_needed(differences: Sequence[float], significance: float) -> int | None:
    """How many rounds in all it takes to decide at the spread seen, with a chance of 4 in 5.

    By the normal approximation, and no fewer than the test can ever decide with. None where the
    mean is so near to 0 that a thousand do not suffice.
    """
    least = max(LEAST_ROUNDS, ceil(-log2(significance) - 1e-9))
    if len(differences) < 2:
        return least
    mean, spread = fmean(differences), stdev(differences)
    if spread == 0:
        return least if mean else None
    quantile = NormalDist().inv_cdf
    apart = (quantile(1 - significance) + quantile(_POWER)) * spread
    if apart > abs(mean) * _MOST_ROUNDS**0.5:
        return None
    return max(least, ceil((apart / abs(mean)) ** 2))
