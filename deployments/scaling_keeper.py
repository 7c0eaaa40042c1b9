"""The autoscaling policy at work in the Hub: what it goes on from, and how it is seen.

Owns the last decision for as long as the Hub lives. Whoever has replicas started asks, and tells
the last decision that it had, so that a Hub that has just started goes on from that. It reads no
clock and knows no Ray.

    {"at": 1764…, "desired": 2, "ready": 1, "wanted": 2, "min": 1, "max": 3, "cause": "load",
     "reason": "5.00 sequences/s keep 1.25 replicas busy", "replica_hours_today": 3.4,
     "reading": {"arrivals_per_s": 5.0, …}, "decisions": [{"cause": "load", "direction": "up",
     "count": 3}, …], "steps": [{"at": 1764…, "before": 1, "after": 2, "reason": "…", …}, …]}
"""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Any

from chairlift.cluster.autoscaling import LoadReading, ScalingPolicy
from chairlift.cluster.autoscaling_reader import LoadReader
from chairlift.cluster.scaling import Fleet, Scaling, scaled
from chairlift.cluster.windows import Fold

__all__ = ["ScalingKeeper"]

logger = logging.getLogger(__name__)

FORGOTTEN_S = 30.0
"""Nobody has asked for so long: there is no autoscaling any more."""
WAKES_S = 600.0
"""So long at the most may the first replica take after there was none."""


class ScalingKeeper:
    """Keeps the one autoscaler of a cluster; times are seconds of the wall clock."""

    def __init__(self, fold: Fold) -> None:
        self._fold = fold
        self._reader = LoadReader()
        self._policy: ScalingPolicy | None = None
        self._last: Scaling | None = None
        self._asleep_at = -math.inf

    def decide(self, fleet: Fleet, now: float) -> Scaling:
        """How many replicas there should be, asked for by who has them started."""
        known, starting = self._last, max(0, fleet.target - fleet.ready)
        if known is None or (fleet.last is not None and fleet.last.state.at > known.state.at):
            known = fleet.last
        reading = self._reader.read(self._fold, fleet.ready, starting, now)
        last = scaled(fleet, known, reading, now)
        if last.decision.desired != fleet.target:
            change = f"{fleet.target} → {last.decision.desired}"
            logger.info("replicas: %s (%s): %s", change, last.decision.cause, last.decision.reason)
        if fleet.target == 0:
            self._asleep_at = now
        self._policy, self._last = fleet.policy, last
        return last

    def wakes(self, now: float) -> bool:
        """There was no replica a while ago, on purpose, and there still is none."""
        if self._last is None or not 0 <= now - self._asleep_at < WAKES_S:
            return False
        return self._last.reading.ready == 0

    def view(self, now: float) -> dict[str, Any] | None:
        """As JSON can hold it; None where nothing is scaled."""
        last, policy = self._last, self._policy
        if last is None or policy is None or not abs(now - last.state.at) < FORGOTTEN_S:
            return None
        decision = last.decision
        return {
            "at": last.state.at,
            "desired": decision.desired,
            "ready": last.reading.ready,
            "wanted": decision.wanted,
            "min": policy.min_replicas,
            "max": policy.max_replicas,
            "cause": decision.cause.value,
            "reason": decision.reason,
            "replica_hours_today": last.state.spent_s / 3600,
            "reading": _reading(last.reading),
            "decisions": [
                {"cause": cause.value, "direction": direction, "count": count}
                for (cause, direction), count in sorted(last.counts.items())
            ],
            "steps": [
                dataclasses.asdict(step) | {"cause": step.cause.value} for step in last.steps
            ],
        }


def _reading(reading: LoadReading) -> dict[str, float | None]:
    values = dataclasses.asdict(reading) | {"work_s": reading.work_s}
    return {name: None if value == math.inf else value for name, value in values.items()}
