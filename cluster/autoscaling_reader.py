"""What the autoscaling policy goes by, measured from what routers tell the Hub.

Owns the definitions of ``LoadReading`` where there is a Hub; most are the Guard's (``signals``,
``replica_signals``). What one replica can compute is learned where replicas have more to do than
they can, and believed for hours. Pure: times are passed in, as seconds of the wall clock.

    slope         sequences of the last 10 s less those of the 10 s before, less two standard
                  deviations of that, a second
    tokens_per_s  the most that a replica computed, once one was seen that was saturated
    goodput       of requests that ended in 10 s, rejected ones included, but for cancelled ones
"""

from __future__ import annotations

import math
from collections import deque

from chairlift.cluster.autoscaling import LoadReading
from chairlift.cluster.replica_signals import Present, ReplicaSignals
from chairlift.cluster.signals import StandingQueue, arrivals_per_s, oldest_waiting, placed_s
from chairlift.cluster.telemetry import Tally
from chairlift.cluster.windows import Fold

__all__ = ["LoadReader"]

MEAN_S, MEAN_OF = 60, 10
"""Seconds over which means are taken; of so many requests at least."""
HALF_S = 10
"""Seconds that are compared with as many before them."""
GOODPUT_OF = 10
"""Requests in the last 10 s, below which nothing is said of those that met their targets."""
SATURATED = 0.8
"""Share of steps after which somebody waited, from which on a pace is the most that there is."""
LEARNED_S = 6 * 3600.0
"""For how long a pace is believed: hardware and model stay the same. Where it was forgotten over a
pause, the next burst was taken for little work until replicas were saturated again."""


class LoadReader:
    """Measures; to be asked about as often as routers report."""

    def __init__(self) -> None:
        self._replicas = ReplicaSignals()
        self._queue = StandingQueue()
        self._paces: deque[tuple[float, float]] = deque()

    def read(self, fold: Fold, ready: int, starting: int, now: float) -> LoadReading:
        """What is known now; ``ready`` and ``starting``: replicas, as whoever starts them says."""
        present = fold.present(now)
        self._replicas.observe(present, now)
        self._queue.observe(present, now)
        self._learn(now)
        if not present:
            return LoadReading(ready, starting, age_s=math.inf)
        end, oldest = fold.told(now), oldest_waiting(present)
        oldest_s = 0.0 if oldest is None else oldest.value
        delay_s = self._queue.delay_s(fold, now)
        minute = _sum(fold, end, MEAN_S)
        seated_s, waiting = placed_s(fold, end), _waiting(present)
        return LoadReading(
            ready=ready,
            starting=starting,
            arrivals_per_s=arrivals_per_s(fold, end),
            slope=_slope(fold, end),
            seat_s=None if seated_s is None else seated_s * self._replicas.seated_share(),
            room=self._replicas.room(),
            sequence_tokens=_sequence_tokens(minute),
            tokens_per_s=self._paces[0][1] if self._paces else None,
            running=max(0, sum(report.open or 0 for report, _ in present) - waiting),
            waiting=waiting,
            oldest_s=oldest_s,
            queue_delay_s=oldest_s if delay_s is None else delay_s,
            goodput=_goodput(_sum(fold, end, HALF_S)),
            age_s=min(silent_s for _, silent_s in present),
        )

    def _learn(self, now: float) -> None:
        """The highest pace comes first, and behind it the highest of those that are newer."""
        while self._paces and not now - LEARNED_S < self._paces[0][0] <= now:
            self._paces.popleft()
        for pace, saturated in self._replicas.paces():
            if saturated >= SATURATED or (self._paces and pace > self._paces[0][1]):
                while self._paces and self._paces[-1][1] <= pace:
                    self._paces.pop()
                self._paces.append((now, pace))


def _sum(fold: Fold, end: int, span_s: int) -> Tally:
    sum_ = Tally()
    for _, tally in fold.tallies(end, span_s, width=1 if span_s < MEAN_S else 10):
        sum_.merge(tally)
    return sum_


def _waiting(present: Present) -> int:
    return sum(sum(report.queued.values()) for report, _ in present)


def _sequence_tokens(minute: Tally) -> float | None:
    """Of prompts, but what was cached, and outputs; a request may be several sequences."""
    requests = minute.first_token.count
    if requests < MEAN_OF:
        return None
    tokens = minute.prompt_tokens - minute.cached_tokens + minute.output_tokens
    return tokens / requests * minute.started / max(1, minute.choices)


def _slope(fold: Fold, end: int) -> float:
    late = sum(tally.choices for _, tally in fold.tallies(end, HALF_S))
    early = sum(tally.choices for _, tally in fold.tallies(end - HALF_S, HALF_S))
    return max(0.0, late - early - 2 * math.sqrt(late + early)) / HALF_S**2


def _goodput(lately: Tally) -> float | None:
    ended = lately.finished + lately.failed + lately.rejected
    return lately.met / ended if ended >= GOODPUT_OF else None
