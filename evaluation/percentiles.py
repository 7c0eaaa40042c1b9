"""Percentiles of raw values, with or without weights.

Owns one definition for every figure that the evaluation prints: the smallest value at which the
cumulative weight reaches the wanted share of the whole (the inverse of the empirical
distribution). It never interpolates, so each percentile is a value that was measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

__all__ = ["Percentiles", "percentiles", "quantile", "weighted_percentiles"]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """What is reported of a set of values, in their own unit.

    ``count`` is the number of values, or the sum of the weights.
    """

    mean: float
    p50: float
    p95: float
    p99: float
    count: float


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """None when there are no values."""
    return weighted_percentiles((value, 1.0) for value in values)


def quantile(values: Iterable[float], share: float) -> float | None:
    """The value at one share of the whole, above 0; None when there are no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    target = share * len(ordered)
    return ordered[ceil(target - 1e-9 * max(target, 1.0)) - 1]


def weighted_percentiles(pairs: Iterable[tuple[float, float]]) -> Percentiles | None:
    """Percentiles of (value, weight); None when the weights sum to nothing."""
    ordered = sorted(pair for pair in pairs if pair[1] > 0)
    total = sum(weight for _, weight in ordered)
    if not ordered:
        return None
    return Percentiles(
        mean=sum(value * weight for value, weight in ordered) / total,
        p50=_quantile(ordered, 0.50 * total),
        p95=_quantile(ordered, 0.95 * total),
        p99=_quantile(ordered, 0.99 * total),
        count=total,
    )


def _quantile(ordered: list[tuple[float, float]], target: float) -> float:
    # The tolerance keeps a target that is met exactly (0.95 of 20 values) from sliding to the
    # next value because of rounding.
    target -= 1e-9 * max(target, 1.0)
    cumulative = 0.0
    for value, weight in ordered:
        cumulative += weight
        if cumulative >= target:
            return value
    return ordered[-1][0]
