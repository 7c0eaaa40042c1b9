"""How fairly tenants were served in some time, measured.

Owns the definitions. Shares are compared as weighted service: service, in the units of
``cluster.fairness``, over the tenant's weight. Only who waited nearly all the time has a claim to
an equal share, since who asks for less gets less; so only those are compared, and only if they are
known by name and weight.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from chairlift.cluster.fairness import gap_bound
from chairlift.cluster.protocol import Priority
from chairlift.cluster.sketch import Sketch
from chairlift.cluster.telemetry import OTHERS
from chairlift.cluster.windows import Window

__all__ = [
    *("BACKLOGGED", "BatchShape", "Fairness", "bystanders", "fairness", "jain"),
    "slowdown_ratio",
]

BACKLOGGED = 0.9
"""Who waited for this share of a window was backlogged throughout; routers look but so often."""

BEST_EFFORT = Priority.BATCH.name.lower()

SELF_MADE = 0.1
"""Who waited for this share of a window, and was served no less than the mean, waits for itself."""


@dataclass(frozen=True, slots=True)
class BatchShape:
    """What the bound of the service gap depends on.

    Attributes:
        longest_prompt: tokens of the longest prompt.
        tokens_in_flight: output tokens that can be under way at once in the cluster.
    """

    longest_prompt: int
    tokens_in_flight: int


@dataclass(frozen=True, slots=True)
class Fairness:
    """Of one window.

    Attributes:
        backlogged: tenants that waited throughout, by name.
        weighted_service: of each of them.
        jain: Jain's index over it: 1 if all had the same, 1/n if one had all. None with fewer
            than two tenants, or if nobody was served.
        gap: between the most and the least of it; None with fewer than two tenants.
        gap_bound: what the gap may come to (``cluster.fairness.gap_bound``, over the least weight
            of the backlogged); None with fewer than two, or if the shape of batches is not known.
        slowdown_p99: of each tenant, where requests finished for which it is known.
        slowdown_ratio: the worst of it over its median; None with fewer than two tenants.
        refused: of each tenant, its requests that were rejected as a share of those that ended;
            only tenants of which any ended.
        weights: of the tenants, where they are known.
        service_share: of each tenant, in the service of all; empty if nobody was served.
    """

    backlogged: tuple[str, ...]
    weighted_service: dict[str, float]
    jain: float | None
    gap: float | None
    gap_bound: float | None
    slowdown_p99: dict[str, float]
    slowdown_ratio: float | None
    refused: dict[str, float]
    weights: dict[str, float]
    service_share: dict[str, float]


def fairness(window: Window, weights: Mapping[str, float], shape: BatchShape | None) -> Fairness:
    """What the window says of tenants whose weights are these."""
    service: dict[str, float] = {}
    slowdown: dict[str, Sketch] = {}
    ended: dict[str, int] = {}
    rejected: dict[str, int] = {}
    for (tenant, _, _), tally in window.bucket.items():
        service[tenant] = service.get(tenant, 0.0) + tally.service
        slowdown.setdefault(tenant, Sketch()).merge(tally.slowdown)
        ended[tenant] = ended.get(tenant, 0) + tally.ended
        rejected[tenant] = rejected.get(tenant, 0) + tally.rejected
    weighted = {
        tenant: service[tenant] / weights[tenant]
        for tenant in sorted(service.keys() & weights.keys() - {OTHERS})
        if window.backlogged_s.get(tenant, 0.0) >= BACKLOGGED * window.span_s
    }
    comparable = len(weighted) > 1
    whole = sum(service.values())
    p99 = {tenant: each.quantile(0.99) for tenant, each in sorted(slowdown.items())}
    slowdown_p99 = {tenant: value for tenant, value in p99.items() if value is not None}
    bound = None
    if comparable and shape is not None:
        bound = gap_bound(shape.longest_prompt, shape.tokens_in_flight)
        bound /= min(weights[tenant] for tenant in weighted)
    return Fairness(
        backlogged=tuple(weighted),
        weighted_service=weighted,
        jain=jain(weighted.values()),
        gap=max(weighted.values()) - min(weighted.values()) if comparable else None,
        gap_bound=bound,
        slowdown_p99=slowdown_p99,
        slowdown_ratio=slowdown_ratio(
            [value for tenant, value in slowdown_p99.items() if tenant != OTHERS]
        ),
        refused={name: rejected[name] / all_ for name, all_ in sorted(ended.items()) if all_},
        weights={tenant: weights[tenant] for tenant in sorted(service) if tenant in weights},
        service_share={name: each / whole for name, each in sorted(service.items()) if whole},
    )


def jain(shares: Iterable[float]) -> float | None:
    """(Σx)² / (n Σx²), by Jain, Chiu and Hawe (1984)."""
    values = list(shares)
    squares = sum(value * value for value in values)
    if len(values) < 2 or not squares:
        return None
    return sum(values) ** 2 / (len(values) * squares)


def slowdown_ratio(slowdowns: Iterable[float]) -> float | None:
    """The worst over the median."""
    values = list(slowdowns)
    return max(values) / statistics.median(values) if len(values) > 1 else None


def bystanders(window: Window, weights: Mapping[str, float], least: int) -> dict[str, float]:
    """The p99 slowdown of tenants that have not made it themselves.

    A tenant that always has something waiting, and yet gets as much of the service as the mean of
    all, is in its own way. Only tenants that are known by name and weight, and of which at least so
    many requests finished; best-effort ones do not count, for they are meant to wait for others.
    """
    weighted: dict[str, float] = {}
    slowdown: dict[str, Sketch] = {}
    for (tenant, priority, _), tally in window.bucket.items():
        if tenant != OTHERS and tenant in weights:
            served = tally.service / weights[tenant]
            weighted[tenant] = weighted.get(tenant, 0.0) + served
            if priority != BEST_EFFORT:
                slowdown.setdefault(tenant, Sketch()).merge(tally.slowdown)
    mean = sum(weighted.values()) / max(len(weighted), 1)
    found = {}
    for tenant, sketch in slowdown.items():
        waited = window.backlogged_s.get(tenant, 0.0) >= SELF_MADE * window.span_s
        p99 = sketch.quantile(0.99)
        if p99 is not None and sketch.count >= least and not (waited and weighted[tenant] >= mean):
            found[tenant] = p99
    return found
