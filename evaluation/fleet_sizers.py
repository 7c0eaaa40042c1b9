"""Who decides how many replicas a simulated cluster has: nobody, Serve's own rule, or ours.

Owns Serve's rule as its documentation has it (Ray Serve, "Advanced autoscaling"), and how ours is
asked, which is the code that serves: ``LoadReader`` over what routers report, and ``decide``.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace

from chairlift.cluster.autoscaling import ScalingDecision, ScalingPolicy, ScalingState, decide
from chairlift.cluster.autoscaling_reader import LoadReader
from chairlift.evaluation.fleet_world import Sight

__all__ = ["Fixed", "Ours", "ServeRule", "ServesDefault"]


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always so many."""

    replicas: int

    def desired(self, sight: Sight) -> int:
        """See ``fleet_world``."""
        return self.replicas


@dataclass(frozen=True, slots=True)
class ServeRule:
    """The fields of Serve's ``AutoscalingConfig`` that matter, with its defaults."""

    min_replicas: int
    max_replicas: int
    target_ongoing_requests: float = 2.0
    upscale_delay_s: float = 30.0
    downscale_delay_s: float = 600.0
    upscaling_factor: float = 1.0
    downscaling_factor: float = 1.0
    look_back_period_s: float = 30.0


class ServesDefault:
    """Requests, waiting ones included, over their target; both directions after a delay.

    Desired are so many replicas that each has ``target_ongoing_requests``, in the mean of the
    look-back period; a factor scales the difference to those that run. What is desired is done once
    more, or fewer, have been desired all through the delay.
    """

    def __init__(self, rule: ServeRule) -> None:
        self._rule = rule
        self._ongoing: deque[tuple[float, int]] = deque()
        self._direction = 0
        self._since = 0.0

    def desired(self, sight: Sight) -> int:
        """See ``fleet_world``."""
        rule, now = self._rule, sight.now
        self._ongoing.append((now, sight.ongoing))
        while self._ongoing[0][0] < now - rule.look_back_period_s:
            self._ongoing.popleft()
        mean = sum(ongoing for _, ongoing in self._ongoing) / len(self._ongoing)
        wanted = self._scaled(mean / rule.target_ongoing_requests, sight.ready)
        wanted = min(max(wanted, rule.min_replicas), rule.max_replicas)
        direction = (wanted > sight.desired) - (wanted < sight.desired)
        if direction != self._direction:
            self._direction, self._since = direction, now
        delay_s = rule.upscale_delay_s if direction > 0 else rule.downscale_delay_s
        if not direction or now - self._since < delay_s:
            return sight.desired
        self._direction = 0
        return wanted

    def _scaled(self, needed: float, there: int) -> int:
        rule = self._rule
        factor = rule.upscaling_factor if needed > there else rule.downscaling_factor
        scaled = math.ceil(there + factor * (needed - there))
        # A factor below 1 must not keep it from ever going down.
        return scaled - 1 if math.ceil(needed) < there == scaled else scaled


class Ours:
    """Chairlift's policy.

    Attributes:
        decisions: those that changed the number, and when, in seconds of the wall clock.
    """

    def __init__(self, policy: ScalingPolicy) -> None:
        self.decisions: list[tuple[float, ScalingDecision]] = []
        self._policy = policy
        self._reader = LoadReader()
        self._state: ScalingState | None = None

    def desired(self, sight: Sight) -> int:
        """See ``fleet_world``."""
        state = self._state or ScalingState.start(sight.desired, sight.now)
        reading = self._reader.read(sight.fold, sight.ready, sight.starting, sight.now)
        reading = replace(reading, draining=sight.draining)
        self._state, decision = decide(self._policy, state, reading, sight.now)
        if decision.desired != sight.desired:
            self.decisions.append((sight.now, decision))
        return decision.desired
