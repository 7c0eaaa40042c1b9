"""The Guard's eleven signals, measured from what routers tell the Hub.

Owns the definitions, with ``replica_signals`` and ``request_flow``; from which value on they mean
harm is the Guard's to say. They are measured over all seconds that the routers have told, up to the
newest, for what is seen late is acted on late.

    offered_load     λ S / N, where λ: sequences that started in 5 s or in 20 s, less two standard
                     deviations, so that few say nothing, the larger rate; S: mean time of finished
                     requests at replicas, in a minute, less the share of it without a seat; N: live
                     replicas' seats, or sequences of mean size in their KV caches
    steps_left       the least of live replicas
    saturated_steps  of the worst replica, in 10 s
    slow_steps       time of steps over what they take by the pace of long before, in 5 s, worst
                     replica; a step under way counts as far as it is
    queue_delay      the least number of requests that waited in 3 s, over the rate at which they
                     were sent, over the target; where none was sent, the oldest's age
    oldest_slope     by least squares, in 4 s; 0 until the oldest waits for a quarter of the target
    kv_use           of the worst replica, in 5 s
    recomputation    of the worst replica, in 10 s: tokens computed again of those computed,
                     preemptions by sequences that were there
    unfairness       the largest of: gap over its bound, in 10 s or a minute; worst p99 slowdown of
                     a tenant that has not made it itself, over the median and the limit, in a
                     minute; age of the oldest over the limit
    contradiction    the larger of ``request_flow`` and, of the worst live replica, by how much its
                     load report differs from what routers have there; an old one differs altogether
    burn_rate        share of missed requests over the share that may miss: the lesser of 10 s and
                     1 min over 14.4, or of 5 min and 1 h over 6, whichever is larger

Burn rates over two windows each, the short one so that it ends when the harm does, are the Site
Reliability Workbook's (Beyer et al., 2018, chapter 5), with shorter windows. Pure: times are passed
in, as seconds of the wall clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from chairlift.cluster.fairness_figures import (
    BatchShape,
    Fairness,
    bystanders,
    fairness,
    slowdown_ratio,
)
from chairlift.cluster.guard_state import Reading, Signal
from chairlift.cluster.replica_signals import Present, ReplicaSignals, worst
from chairlift.cluster.request_flow import RequestFlow
from chairlift.cluster.telemetry import Tally
from chairlift.cluster.windows import Fold, known_s

__all__ = [
    "SignalReader",
    "SignalSettings",
    "StandingQueue",
    "arrivals_per_s",
    "oldest_waiting",
    "placed_s",
]

N = TypeVar("N", int, float)

OFFERED_S = (5, 20)
"""Seconds in which arrivals are counted: few for what is far too much, more for a little."""
SERVED_S, SERVED = 60, 10
"""Seconds in which time at replicas is looked at; of so many requests at least."""

SENT_S = 3
"""Seconds in which what waits and what is sent are looked at."""

SLOPE_S = 4.0
MIN_SLOPE_S = 2.0

PLACES_S = 10
SLOWED = 20
"""Requests of a tenant whose slowdown is believed."""

BURN_PAIRS = (((10, 1), (60, 10), 14.4), ((300, 10), (3600, 60), 6.0))
"""Two windows each, as span and width of buckets, and what is borne in both."""

BURNT = 20
"""Requests in the shorter window, below which nothing is said."""

HOLD_S = 2.0
"""For how long what costs is not computed anew."""


@dataclass(frozen=True, slots=True)
class SignalSettings:
    """What the signals are measured against.

    Attributes:
        first_token_target_s: from a request's arrival to its first token, at the most.
        objective: share of requests that are to meet their targets.
        slowdown_ratio: how much slower the worst tenant may be than the median one.
        starvation_s: how long anybody may wait.
        shape: of batches; None leaves the bound of the service gap unknown.
    """

    first_token_target_s: float
    objective: float = 0.99
    slowdown_ratio: float = 4.0
    starvation_s: float = 30.0
    shape: BatchShape | None = None


@dataclass(frozen=True, slots=True)
class _Costly:
    """What is held for a while."""

    at: float
    sent: dict[str, Tally]
    unfair: list[Reading]
    burn: float


class SignalReader:
    """Measures the signals; to be asked each time that routers have reported."""

    def __init__(self, settings: SignalSettings) -> None:
        self._settings = settings
        self._replicas = ReplicaSignals()
        self._flow = RequestFlow()
        self._ages: deque[tuple[float, float]] = deque()
        self._queue = StandingQueue()
        self._costly: _Costly | None = None

    def read(self, fold: Fold, now: float) -> dict[Signal, Reading]:
        """The signals that are known now; ``now``: seconds of the wall clock."""
        present = fold.present(now)
        replicas, flow = self._replicas, self._flow
        replicas.observe(present, now)
        flow.observe(fold.flows(now), now)
        oldest = oldest_waiting(present)
        _note(self._ages, 0.0 if oldest is None else oldest.value, now, SLOPE_S)
        self._queue.observe(present, now)
        if not present:
            return {}
        costly = self._held(fold, now)
        differences = [each for each in (flow.contradiction(), replicas.difference()) if each]
        found = {
            Signal.OFFERED_LOAD: self._offered_load(fold, now),
            Signal.STEPS_LEFT: replicas.steps_left(),
            Signal.SATURATED_STEPS: replicas.saturated_steps(),
            Signal.SLOW_STEPS: replicas.slow_steps(),
            Signal.QUEUE_DELAY: self._queue_delay(fold, oldest, now),
            Signal.OLDEST_SLOPE: self._oldest_slope(),
            Signal.KV_USE: replicas.kv_use(),
            Signal.RECOMPUTATION: replicas.recomputation(costly.sent),
            Signal.UNFAIRNESS: worst([*costly.unfair, self._starvation(oldest)]),
            Signal.CONTRADICTION: worst(differences),
            Signal.BURN_RATE: Reading(costly.burn),
        }
        return {signal: reading for signal, reading in found.items() if reading is not None}

    def _offered_load(self, fold: Fold, now: float) -> Reading | None:
        end, capacity = fold.told(now), self._replicas.capacity()
        if not capacity:
            return None
        if not (per_s := arrivals_per_s(fold, end)):
            return Reading(0.0)
        if (mean_s := placed_s(fold, end)) is None:
            return None
        return Reading(per_s * mean_s * self._replicas.seated_share() / capacity)

    def _queue_delay(self, fold: Fold, oldest: Reading | None, now: float) -> Reading:
        delay_s, target_s = self._queue.delay_s(fold, now), self._settings.first_token_target_s
        if oldest is None or delay_s == 0.0:
            return Reading(0.0)
        if delay_s is None:
            return Reading(oldest.value / target_s, oldest.where)
        return Reading(delay_s / target_s)

    def _oldest_slope(self) -> Reading | None:
        if self._ages[-1][1] <= self._settings.first_token_target_s / 4:
            return Reading(0.0)
        if self._ages[-1][0] - self._ages[0][0] < MIN_SLOPE_S:
            return None
        return Reading(_slope(self._ages))

    def _starvation(self, oldest: Reading | None) -> Reading:
        if oldest is None:
            return Reading(0.0)
        return Reading(oldest.value / self._settings.starvation_s, oldest.where)

    def _held(self, fold: Fold, now: float) -> _Costly:
        held = self._costly
        if held is None or not held.at <= now < held.at + HOLD_S:
            held = self._costly = _Costly(
                now, self._sent(fold, now), self._unfair(fold, now), self._burn(fold, now)
            )
        return held

    def _sent(self, fold: Fold, now: float) -> dict[str, Tally]:
        return dict(fold.over(fold.told(now), PLACES_S).places)

    def _unfair(self, fold: Fold, now: float) -> list[Reading]:
        settings, weights, end = self._settings, fold.weights(), fold.told(now)
        minute = fold.over(end, 60, width=10)
        readings = [
            reading
            for window in (fold.over(end, 10), minute)
            if (reading := _gap(fairness(window, weights, settings.shape)))
        ]
        slowdowns = bystanders(minute, weights, SLOWED)
        ratio = slowdown_ratio(slowdowns.values())
        if ratio is not None:
            slowest = max(slowdowns, key=lambda tenant: slowdowns[tenant])
            readings.append(Reading(ratio / settings.slowdown_ratio, slowest))
        return readings

    def _burn(self, fold: Fold, now: float) -> float:
        """What it burns over what is borne; 0 where too few requests ended to say."""
        end, allowed = fold.told(now), 1.0 - self._settings.objective
        burns = [0.0]
        for short, long, borne in BURN_PAIRS:
            shares = []
            for span_s, width in (short, long):
                missed, ended = _missed(tally for _, tally in fold.tallies(end, span_s, width))
                # What came before the service did used nothing up: one burst soon after the start
                # is not an hour's worth of harm.
                known = min(1.0, known_s(fold, end) / span_s)
                shares.append(known * missed / ended if ended >= BURNT else 0.0)
            burns.append(min(shares) / allowed / borne)
        return max(burns)


class StandingQueue:
    """What stands in routers' queues; to be told each time that they have reported."""

    def __init__(self) -> None:
        self._standing: deque[tuple[float, int]] = deque()

    def observe(self, present: Present, now: float) -> None:
        waiting = sum(sum(report.queued.values()) for report, _ in present)
        _note(self._standing, waiting, now, SENT_S)

    def delay_s(self, fold: Fold, now: float) -> float | None:
        """Seconds of work that stand (Little's law); None where none of it is sent at all.

        Not how long those waited who were sent: fair queueing serves some at once for as long as
        anybody waits.
        """
        standing = min(waiting for _, waiting in self._standing)
        if not standing:
            return 0.0
        sent = sum(tally.queue_wait.count for _, tally in fold.tallies(fold.told(now), SENT_S))
        return standing * SENT_S / sent if sent else None


def arrivals_per_s(fold: Fold, end: int) -> float:
    """Sequences that come, at least: by few seconds or by more, whichever is the larger rate."""
    return max(_at_least(_started(fold, end, span_s)) / span_s for span_s in OFFERED_S)


def placed_s(fold: Fold, end: int) -> float | None:
    """Mean time of finished requests at replicas, in a minute; None where they are too few."""
    finished, seconds = 0.0, 0.0
    for _, tally in fold.tallies(end, SERVED_S, width=10):
        finished += tally.duration.count
        seconds += tally.placed_s
    return seconds / finished if finished >= SERVED else None


def _note(course: deque[tuple[float, N]], value: N, now: float, span_s: float) -> None:
    """Add to a course, and forget what is older than its span."""
    course.append((now, value))
    while course[0][0] < now - span_s:
        course.popleft()


def _started(fold: Fold, end: int, span_s: int) -> int:
    return sum(tally.choices for _, tally in fold.tallies(end, span_s))


def _at_least(number: int) -> float:
    """As many were meant to come, when so many came by chance."""
    return max(0.0, number - 2 * math.sqrt(number))


def _missed(tallies: Iterable[Tally]) -> tuple[int, int]:
    """Requests that were let in and did not meet their targets, and all of those that ended."""
    missed = ended = 0
    for tally in tallies:
        missed += tally.finished - tally.met + tally.failed
        ended += tally.finished + tally.failed
    return missed, ended


def _gap(found: Fairness) -> Reading | None:
    """Of the service of backlogged tenants, over its bound; where it was least."""
    if found.gap is None or not found.gap_bound:
        return None
    service = found.weighted_service
    return Reading(found.gap / found.gap_bound, min(service, key=lambda tenant: service[tenant]))


def oldest_waiting(present: Present) -> Reading | None:
    """The age of what waits longest and whose it is, as routers said; None where nothing waits."""
    return worst(
        [
            Reading(age_s, tenant)
            for report, _ in present
            for tenant, age_s in sorted(report.oldest_s.items())
        ]
    )


def _slope(points: Iterable[tuple[float, float]]) -> float:
    """Of the line through these points, by least squares."""
    xs, ys = zip(*points, strict=True)
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
