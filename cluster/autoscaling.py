"""How many replicas there should be, from what they are offered and what one can do.

Owns the policy; what it goes by is measured by ``autoscaling_reader``, and whoever has replicas
started and stopped asks here. All is counted in work: how much of one replica's time a sequence
takes (``LoadReading.work_s``), by its seat or by its tokens, whichever it has more of.

    up at once      arrivals × work / target load, or what runs over what one can run / target load;
                    where the oldest waits too long, also what waits, to be gone within ``clear_s``;
                    where goodput is short of the objective, one more
    down slowly     to the most that was needed in the last ``hold_s`` at the lower ``low_load``, a
                    share of the replicas at a time, and never while one hands over
    to and from 0   after ``idle_s`` without a request; at once when one waits
    as it is        where readings are old

Bounds and cost ceilings come after all of that. Every decision names what decided it. Pure: times
are passed in, as seconds of the wall clock.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

__all__ = ["Cause", "LoadReading", "ScalingDecision", "ScalingPolicy", "ScalingState", "decide"]

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
ROUNDING = 1e-9
"""So much of a replica more is a fault of floating point."""
SHOWS = 2.0
"""Times ``lead_s``, until what a new replica does shows in the goodput."""


class Cause(enum.StrEnum):
    """What decided."""

    LOAD = "load"
    SEATS = "seats"
    SLOPE = "slope"
    QUEUE = "queue"
    GOODPUT = "goodput"
    CALM = "calm"
    IDLE = "idle"
    AWAKE = "awake"
    BOUNDS = "bounds"
    COST = "cost"
    COOL_DOWN = "cool_down"
    STALE = "stale"
    STEADY = "steady"


@dataclass(frozen=True, slots=True)
class ScalingPolicy:
    """What is decided by.

    Attributes:
        min_replicas, max_replicas: bounds; 0 lets the last one go.
        first_token_target_s: from a request's arrival to its first token, at the most.
        target_load: share of their time that replicas are to be busy.
        low_load: the same of those that remain, for one to go; less than ``target_load``.
        queue_share: of the target, that the oldest may wait before more replicas are called.
        clear_s: within which what waits is then to be served.
        objective: share of requests that are to meet their targets.
        lead_s: until a new replica serves; so far ahead are rising arrivals looked at.
        up_cool_down_s: between two steps up.
        down_cool_down_s: after any step, before one down.
        hold_s: for how long fewer replicas must have been enough.
        down_share: of the replicas that may go in one step; one may always.
        idle_s: without a request, after which the last replica goes.
        stale_s: age of readings that say nothing any more.
        price_per_replica_hour, max_price_per_hour: in any currency; None without such a ceiling.
        max_replica_hours_per_day: once they are used up, there are ``min_replicas``, or one, until
            the next day (UTC); None without such a ceiling.
    """

    min_replicas: int
    max_replicas: int
    first_token_target_s: float
    target_load: float = 0.8
    low_load: float = 0.6
    queue_share: float = 0.3
    clear_s: float = 5.0
    objective: float = 0.95
    lead_s: float = 10.0
    up_cool_down_s: float = 2.0
    down_cool_down_s: float = 10.0
    hold_s: float = 30.0
    down_share: float = 0.25
    idle_s: float = 300.0
    stale_s: float = 10.0
    price_per_replica_hour: float | None = None
    max_price_per_hour: float | None = None
    max_replica_hours_per_day: float | None = None


@dataclass(frozen=True, slots=True)
class LoadReading:
    """What is known at one moment.

    Attributes:
        ready, starting, draining: replicas that take requests, will soon, hand theirs over.
        arrivals_per_s: sequences that come now, at least.
        slope: by how much the arrivals grow in a second; 0 where that may be chance.
        seat_s: for how long a sequence has a seat; None where that is not known.
        room: sequences of mean size that one replica runs at once, for seats and KV cache.
        sequence_tokens: that a sequence has computed, prompt (but what is cached) and output.
        tokens_per_s: that one replica computes at the most, as measured.
        running: sequences at replicas; ``waiting``: at routers.
        oldest_s: since the arrival of the one that waits longest.
        queue_delay_s: work that stands in the queue, at the rate at which it is served.
        goodput: share of requests that met their targets lately, of all that ended.
        age_s: of what routers said last.
    """

    ready: int
    starting: int = 0
    draining: int = 0
    arrivals_per_s: float = 0.0
    slope: float = 0.0
    seat_s: float | None = None
    room: float | None = None
    sequence_tokens: float | None = None
    tokens_per_s: float | None = None
    running: int = 0
    waiting: int = 0
    oldest_s: float = 0.0
    queue_delay_s: float = 0.0
    goodput: float | None = None
    age_s: float = 0.0

    @property
    def work_s(self) -> float | None:
        """Seconds of a replica that a sequence takes; None where that is not known."""
        shares = [
            of / by
            for of, by in ((self.seat_s, self.room), (self.sequence_tokens, self.tokens_per_s))
            if of is not None and by
        ]
        return max(shares, default=None)

    @property
    def occupied(self) -> float | None:
        """Replicas that what runs would fill; None where that is not known."""
        return self.running / self.room if self.room else None

    @property
    def quiet(self) -> bool:
        """There is nothing to do."""
        return not (self.waiting or self.running or self.arrivals_per_s)


@dataclass(frozen=True, slots=True)
class ScalingState:
    """Between decisions.

    Attributes:
        desired: replicas, as decided last.
        up_at, changed_at: the last step up, and the last one at all.
        busy_at: when there was last something to do.
        watched_at: since when readings have come without a pause.
        needed: when so many were needed for the low load, in ``hold_s``; falling.
        work_s: of ``LoadReading``, as last known.
        at: of the last decision.
        spent_s: replica-seconds of the day that ``at`` is in.
    """

    desired: int
    at: float
    up_at: float = -math.inf
    changed_at: float = -math.inf
    busy_at: float = -math.inf
    watched_at: float | None = None
    needed: tuple[tuple[float, int], ...] = ()
    work_s: float | None = None
    spent_s: float = 0.0

    @classmethod
    def start(cls, desired: int, now: float) -> ScalingState:
        """With so many replicas there, or asked for."""
        return cls(desired, now, busy_at=now)


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """What is to be.

    Attributes:
        desired: replicas.
        wanted: before bounds, ceilings and cool-downs.
        cause: what decided; ``reason``: in words.
    """

    desired: int
    wanted: int
    cause: Cause
    reason: str


@dataclass(frozen=True, slots=True)
class _Wish:
    """For so many replicas, and why."""

    replicas: int
    cause: Cause
    reason: str


def decide(
    policy: ScalingPolicy, state: ScalingState, reading: LoadReading, now: float
) -> tuple[ScalingState, ScalingDecision]:
    """Look at the reading; about once a second.

    ``now`` may be before ``state.at``, for wall clocks are set back; then no time has passed.
    """
    state = _passed(state, reading, now)
    if reading.age_s > policy.stale_s:
        stale = f"what is known is {reading.age_s:.0f} s old, so all stays as it is"
        kept = _Wish(state.desired, Cause.STALE, stale)
        return _decided(policy, replace(state, watched_at=None, needed=()), kept, kept, now)
    state = _watched(policy, state, reading, now)
    wish = _wish(policy, state, reading, now)
    return _decided(policy, state, wish, _cooled(policy, state, wish, reading, now), now)


def _passed(state: ScalingState, reading: LoadReading, now: float) -> ScalingState:
    """Time has gone by, for which replicas are paid."""
    passed_s = max(0.0, now - state.at)
    spent_s = state.spent_s
    if now // DAY_S != state.at // DAY_S and passed_s:
        passed_s, spent_s = min(passed_s, now % DAY_S), 0.0
    there = reading.ready + reading.starting + reading.draining
    return replace(state, at=now, spent_s=spent_s + there * passed_s)


def _watched(
    policy: ScalingPolicy, state: ScalingState, reading: LoadReading, now: float
) -> ScalingState:
    """With what this reading adds to what was known."""
    work_s = reading.work_s if reading.work_s is not None else state.work_s
    state = replace(
        state,
        work_s=work_s,
        busy_at=min(state.busy_at, now) if reading.quiet else now,
        watched_at=now if state.watched_at is None else min(state.watched_at, now),
    )
    low, oldest = _low(policy, state, reading), now - policy.hold_s
    kept = [(at, most) for at, most in state.needed if oldest < at <= now and most > low]
    return replace(state, needed=(*kept, (now, low)))


def _low(policy: ScalingPolicy, state: ScalingState, reading: LoadReading) -> int:
    """Replicas with which the load would be low; all there are, where that is not known."""
    if reading.quiet:
        return 1
    if state.work_s is None or _urgent(policy, reading) or _short(policy, state, reading):
        return max(1, state.desired)
    busy = max(reading.arrivals_per_s * state.work_s, reading.occupied or 0.0)
    return max(1, _ceil(busy / policy.low_load))


def _urgent(policy: ScalingPolicy, reading: LoadReading) -> bool:
    """Whether what waits will be late, if nothing happens."""
    waits_s = max(reading.oldest_s, reading.queue_delay_s)
    return reading.waiting > 0 and waits_s >= policy.queue_share * policy.first_token_target_s


def _short(policy: ScalingPolicy, state: ScalingState, reading: LoadReading) -> bool:
    """Whether too few are in time, at replicas that have enough to do for more to be of use."""
    if reading.goodput is None or state.work_s is None or reading.goodput >= policy.objective:
        return False
    return reading.arrivals_per_s * state.work_s > policy.low_load / 2 * reading.ready


def _wish(policy: ScalingPolicy, state: ScalingState, reading: LoadReading, now: float) -> _Wish:
    """What there should be, whatever may be."""
    if state.desired == 0:
        if not reading.waiting:
            return _Wish(0, Cause.STEADY, "nothing to do")
        awake = _Wish(1, Cause.AWAKE, f"{reading.waiting} requests wait, and there is no replica")
        return max(awake, *_calls(policy, state, reading, now), key=lambda each: each.replicas)
    loudest = max(_calls(policy, state, reading, now), key=lambda each: each.replicas)
    if loudest.replicas > state.desired:
        return loudest
    return _fewer(policy, state, now) or _Wish(
        state.desired, Cause.STEADY, f"{loudest.reason}; all stays as it is"
    )


def _calls(
    policy: ScalingPolicy, state: ScalingState, reading: LoadReading, now: float
) -> list[_Wish]:
    """What each signal asks for; of several that ask for as many, the first one counts."""
    work_s, target, there = state.work_s, policy.target_load, reading.ready + reading.starting
    urgent = _urgent(policy, reading)
    waits = f"{reading.waiting} requests wait, the oldest for {reading.oldest_s:.2f} s"
    seats = _Wish(0, Cause.SEATS, "what replicas run at once is not known yet")
    if reading.occupied is not None:
        fill = f"{reading.running} requests that run fill {reading.occupied:.2f} replicas"
        seats = _Wish(_ceil(reading.occupied / target), Cause.SEATS, fill)
    if work_s is None:
        one_more = max(there, state.desired, 1) + (not reading.starting)
        return [seats, _Wish(one_more, Cause.QUEUE, waits)] if urgent else [seats]
    work = reading.arrivals_per_s * work_s
    rising = max(0.0, reading.slope) * policy.lead_s
    ahead = min(2 * reading.arrivals_per_s, reading.arrivals_per_s + rising) * work_s
    load = f"{reading.arrivals_per_s:.2f} sequences/s keep {work:.2f} replicas busy"
    calls = [
        _Wish(_ceil(work / target), Cause.LOAD, load),
        seats,
        _Wish(_ceil(ahead / target), Cause.SLOPE, f"{load}, soon {ahead:.2f}, for arrivals rise"),
    ]
    if urgent:
        standing = reading.waiting * work_s / policy.clear_s
        calls.append(_Wish(_ceil(max(work, ahead) / target + standing), Cause.QUEUE, waits))
    seen = not reading.starting and not 0 <= now - state.up_at < SHOWS * policy.lead_s
    if seen and _short(policy, state, reading):
        reason = f"{reading.goodput:.1%} met their targets, of {policy.objective:.1%}"
        calls.append(_Wish(reading.ready + 1, Cause.GOODPUT, reason))
    return calls


def _fewer(policy: ScalingPolicy, state: ScalingState, now: float) -> _Wish | None:
    """Down to what was needed at the most for a while; None if that is not less."""
    if state.desired == 1 and policy.min_replicas == 0 and now - state.busy_at >= policy.idle_s:
        return _Wish(0, Cause.IDLE, f"nothing to do for {now - state.busy_at:.0f} s")
    if state.watched_at is None or now - state.watched_at < policy.hold_s:
        return None
    most = max(needed for _, needed in state.needed)
    if most >= state.desired:
        return None
    reason = f"{most} would be busy for less than {policy.low_load:.0%}, for {policy.hold_s:.0f} s"
    return _Wish(most, Cause.CALM, reason)


def _cooled(
    policy: ScalingPolicy, state: ScalingState, wish: _Wish, reading: LoadReading, now: float
) -> _Wish:
    """The step that may be taken now."""
    if wish.replicas > state.desired > 0:
        if 0 <= now - state.up_at < policy.up_cool_down_s:
            return _Wish(state.desired, Cause.COOL_DOWN, f"{wish.reason}; so soon after a step up")
    elif wish.replicas < state.desired:
        if 0 <= now - state.changed_at < policy.down_cool_down_s:
            return _Wish(state.desired, Cause.COOL_DOWN, f"{wish.reason}; so soon after a step")
        if reading.draining:
            return _Wish(state.desired, Cause.COOL_DOWN, f"{wish.reason}; one hands over still")
        most = max(1, int(policy.down_share * state.desired))
        return replace(wish, replicas=max(wish.replicas, state.desired - most))
    return wish


def _decided(
    policy: ScalingPolicy, state: ScalingState, wish: _Wish, step: _Wish, now: float
) -> tuple[ScalingState, ScalingDecision]:
    """The step within bounds and ceilings, and the state after it."""
    desired, cause, reason = step.replicas, step.cause, step.reason
    dear = _affordable(policy, state)
    if desired > policy.max_replicas:
        desired, cause = policy.max_replicas, Cause.BOUNDS
        reason = f"{reason}; {step.replicas} would be needed, {desired} are allowed"
    if desired < policy.min_replicas:
        desired, cause = policy.min_replicas, Cause.BOUNDS
        reason = f"{desired} are kept in any case"
    if dear is not None and desired > dear:
        reason = f"{reason}; {desired} would be needed, {dear} are paid for"
        desired, cause = dear, Cause.COST
    if desired != state.desired:
        state = replace(
            state,
            up_at=now if desired > state.desired else state.up_at,
            changed_at=now,
            desired=desired,
        )
    return state, ScalingDecision(desired, wish.replicas, cause, reason)


def _affordable(policy: ScalingPolicy, state: ScalingState) -> int | None:
    """Replicas that ceilings leave, ``min_replicas`` or one at least; None without a ceiling."""
    ceilings, least = [], max(1, policy.min_replicas)
    if policy.max_price_per_hour is not None and policy.price_per_replica_hour:
        ratio = policy.max_price_per_hour / policy.price_per_replica_hour
        ceilings.append(math.floor(ratio + ROUNDING))
    day = policy.max_replica_hours_per_day
    if day is not None and state.spent_s >= day * HOUR_S:
        ceilings.append(least)
    return max(least, min(ceilings)) if ceilings else None


def _ceil(replicas: float) -> int:
    return math.ceil(replicas - ROUNDING)
