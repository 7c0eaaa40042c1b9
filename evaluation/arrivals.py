"""When requests of a synthetic load arrive.

Owns the arrival processes; knows nothing of the requests. Real traffic is bursty (coefficients of
variation from 1 to 13), so besides ``poisson`` and ``constant`` there is ``gamma:CV``: gaps from
a gamma distribution with that coefficient of variation; ``gamma:1`` is ``poisson``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeAlias

__all__ = ["Gap", "arrival_times", "parse_arrivals"]

Gap: TypeAlias = Callable[[random.Random], float]
"""Draws the time between two arrivals, in units of its mean."""


def parse_arrivals(text: str) -> Gap:
    """``poisson``, ``constant`` or ``gamma:CV``; ValueError for anything else."""
    kind, _, variation = text.partition(":")
    match kind, variation:
        case "poisson", "":
            return lambda rng: rng.expovariate(1.0)
        case "constant", "":
            return lambda _rng: 1.0
        case "gamma", _:
            try:
                shape = float(variation) ** -2
            except (ValueError, ZeroDivisionError):
                shape = 0.0
            if shape > 0:
                return lambda rng: rng.gammavariate(shape, 1 / shape)
            raise ValueError(f"arrivals {text!r}: write gamma:CV with a number above 0")
    raise ValueError(f"arrivals {text!r}: expected poisson, constant or gamma:CV")


def arrival_times(gap: Gap, rate: float, rng: random.Random) -> Iterator[float]:
    """Seconds from the start, for ever; the first arrival is at 0. ``rate`` is per second."""
    at = 0.0
    while True:
        yield at
        at += gap(rng) / rate
