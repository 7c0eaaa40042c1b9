"""What who has replicas started and who decides how many tell each other, and what was decided.

Owns these words, and a short memory of decisions. The rules are ``autoscaling``'s. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from chairlift.cluster.autoscaling import (
    Cause,
    LoadReading,
    ScalingDecision,
    ScalingPolicy,
    ScalingState,
    decide,
)

__all__ = ["Fleet", "Scaling", "Step", "scaled"]

MOST_STEPS = 64
"""That are remembered."""

TOLD = {Cause.BOUNDS, Cause.COST, Cause.STALE}
"""Causes for which nothing may change, and which are remembered as well, once each time."""


@dataclass(frozen=True, slots=True)
class Step:
    """A decision that is remembered.

    Attributes:
        at: when, in seconds of the wall clock.
        before, after: replicas that were and are desired; ``wanted``: but for bounds and ceilings.
        ready: that took requests then.
        cause, reason: as the decision has them.
    """

    at: float
    before: int
    after: int
    wanted: int
    ready: int
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class Scaling:
    """How the number of replicas stands.

    Attributes:
        state: to go on from.
        decision: the last one, and ``reading``, what it was made of.
        steps: the last ones, oldest first.
        counts: decisions that changed the number, by cause and direction.
    """

    state: ScalingState
    decision: ScalingDecision
    reading: LoadReading
    steps: tuple[Step, ...] = ()
    counts: Mapping[tuple[Cause, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What who has replicas started says of them.

    Attributes:
        policy: to go by.
        target: replicas that it is to have now.
        ready: that take requests.
        last: that it was told; it outlives whoever decides.
    """

    policy: ScalingPolicy
    target: int
    ready: int
    last: Scaling | None = None


def scaled(fleet: Fleet, known: Scaling | None, reading: LoadReading, now: float) -> Scaling:
    """Decide, and remember; ``known``: the newest that was decided."""
    if known is None:
        # One that has never been there is started once, so that what is wrong with it shows.
        state = ScalingState.start(max(1, fleet.target), now)
        known = Scaling(
            state, ScalingDecision(fleet.target, fleet.target, Cause.STEADY, ""), reading
        )
    elif known.state.desired != fleet.target:  # somebody else has had a hand in it
        known = replace(known, state=replace(known.state, desired=fleet.target))
    state, decision = decide(fleet.policy, known.state, reading, now)
    return _remembered(known, fleet, Scaling(state, decision, reading), now)


def _remembered(known: Scaling, fleet: Fleet, new: Scaling, now: float) -> Scaling:
    decision, counts = new.decision, dict(known.counts)
    changed = decision.desired != fleet.target
    if changed:
        key = decision.cause, "up" if decision.desired > fleet.target else "down"
        counts[key] = counts.get(key, 0) + 1
    elif decision.cause not in TOLD or decision.cause == known.decision.cause:
        return replace(new, steps=known.steps, counts=counts)
    step = Step(
        at=now,
        before=fleet.target,
        after=decision.desired,
        wanted=decision.wanted,
        ready=fleet.ready,
        cause=decision.cause,
        reason=decision.reason,
    )
    return replace(new, steps=(*known.steps, step)[-MOST_STEPS:], counts=counts)
