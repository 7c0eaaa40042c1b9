"""What load reports say of replicas over the last minute: the Guard's signals that rest on them.

Owns a short memory of each replica's reports, and the difference between two of them. Counters of a
replica that starts anew fall, and its memory begins anew with them. What routers say of requests is
``signals``. Pure: times are passed in, as seconds of the wall clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from chairlift.cluster.guard_state import Reading
from chairlift.cluster.protocol import LoadReport
from chairlift.cluster.telemetry import ReplicaState, Report, Tally

__all__ = ["Present", "ReplicaSignals", "worst"]

Present: TypeAlias = Sequence[tuple[Report, float]]
"""What routers that are there said last, and how many seconds ago."""

KEEP_S = 60.0
GAP_S = 0.3
"""Two reports of a replica that are remembered are at least so far apart, but for the last two."""

FRESH_S = 3.0
"""An older report says nothing of now."""

SATURATED_S, SATURATED_STEPS = 10.0, 20
SLOW_S, SLOW_STEPS = 5.0, 5
"""The last seconds that are looked at, or the last steps where there were fewer."""

USED_S = 5.0
"""The last seconds that are looked at."""

RECOMPUTED_S, RECOMPUTED_TOKENS, PREEMPTED_SEQUENCES = 10.0, 128, 8
"""The last seconds that are looked at; fewer tokens or sequences say nothing of a share."""

DIFFERS_S, DIFFERS_SEQUENCES = 5.0, 4
"""For how long counts have to differ, for reports and counts are never of quite one moment; how
many sequences there must be."""

PACE_S, PACE_STEPS = 5.0, 10
"""The last seconds that are looked at; fewer steps say nothing of a pace."""

RUNNING = 20
"""Sequences that have been looked at, before their mean size is believed."""


class _Sample(NamedTuple):
    """One replica at one time.

    Attributes:
        at: when it was looked at; the report was made ``age_s`` before.
        open_sequences: that routers have there, by their own count; None if one has none.
    """

    at: float
    load: LoadReport
    age_s: float
    live: bool
    seats: int | None
    open_sequences: int | None


_Course: TypeAlias = deque[_Sample]


class ReplicaSignals:
    """Of all replicas; to be told each time that routers have reported."""

    def __init__(self) -> None:
        self._courses: dict[str, _Course] = {}
        self._fresh: list[str] = []
        self._differences: deque[tuple[float, Reading]] = deque()

    def observe(self, present: Present, now: float) -> None:
        """Take note of what routers say now."""
        seen: dict[str, list[tuple[ReplicaState, float]]] = {}
        for report, silent_s in present:
            for replica_id, state in report.replicas.items():
                seen.setdefault(replica_id, []).append((state, silent_s))
        known: dict[str, _Sample] = {}
        for replica_id in sorted(seen):
            sample = _sample(seen[replica_id], now)
            if sample is not None:
                known[replica_id] = sample
                _extend(self._courses.setdefault(replica_id, deque()), sample)
        for replica_id, course in list(self._courses.items()):
            while course and course[0].at < now - KEEP_S:
                course.popleft()
            if not course:
                del self._courses[replica_id]
        self._fresh = [name for name, each in known.items() if each.live and each.age_s <= FRESH_S]
        self._differences.append((now, _difference(known)))
        while self._differences[0][0] < now - DIFFERS_S:
            self._differences.popleft()

    def capacity(self) -> float | None:
        """Sequences that live replicas can run at once; None where that is not known."""
        rooms = [_room(course) for _, course in self._now()]
        known = [room for room in rooms if room is not None]
        return sum(known) if known and len(known) == len(rooms) else None

    def room(self) -> float | None:
        """The mean of what each of them can run at once."""
        capacity = self.capacity()
        return None if capacity is None else capacity / len(self._fresh)

    def paces(self) -> Iterator[tuple[float, float]]:
        """Tokens that each computes in a second, and share of its steps that were saturated."""
        for _, course in self._now():
            last, before = course[-1], _before(course, PACE_S)
            seconds = (last.at - last.age_s) - (before.at - before.age_s)
            steps = last.load.step - before.load.step
            if seconds > 0 and steps >= PACE_STEPS:
                tokens = last.load.tokens_computed - before.load.tokens_computed
                saturated = last.load.steps_saturated - before.load.steps_saturated
                yield tokens / seconds, saturated / steps

    def seated_share(self) -> float:
        """Of their time at replicas, what sequences had a seat in the last minute."""
        loads = [each.load for _, course in self._now() for each in course]
        running = sum(load.running for load in loads)
        there = running + sum(load.waiting for load in loads)
        return running / there if there else 1.0

    def steps_left(self) -> Reading | None:
        loads = [(course[-1].load, name) for name, course in self._now()]
        if not loads:
            return None
        load, name = min(loads, key=lambda each: each[0].steps_left)
        return Reading(float(load.steps_left), name)

    def kv_use(self) -> Reading | None:
        """The mean of some seconds: a full cache is emptied by each that ends, and filled again."""
        return worst(
            Reading(_used(course), name)
            for name, course in self._now()
            if course[-1].load.blocks_total
        )

    def saturated_steps(self) -> Reading | None:
        def share(before: LoadReport, load: LoadReport) -> float:
            return (load.steps_saturated - before.steps_saturated) / (load.step - before.step)

        return self._by_steps(SATURATED_S, SATURATED_STEPS, share, idle=0.0)

    def slow_steps(self) -> Reading | None:
        """The present step counts with its age, so that one that never ends shows."""

        def ratio(before: LoadReport, load: LoadReport) -> float | None:
            predicted_s = load.predicted_s - before.predicted_s
            if predicted_s <= 0:
                return None
            taken_s = load.step_s - before.step_s + load.step_age_s
            present_s = predicted_s / (load.step - before.step) if load.step_age_s else 0.0
            return taken_s / (predicted_s + present_s)

        return self._by_steps(SLOW_S, SLOW_STEPS, ratio, idle=1.0)

    def recomputation(self, sent: Mapping[str, Tally]) -> Reading | None:
        """``sent``: requests by replica, in as many seconds."""
        return worst(
            Reading(_recomputed(course, sent.get(name, Tally()).started), name)
            for name, course in self._now()
        )

    def difference(self) -> Reading | None:
        """By how much reports differ from what routers have there, the least of some seconds."""
        first_at = self._differences[0][0] if self._differences else 0.0
        if not self._differences or self._differences[-1][0] - first_at < DIFFERS_S / 2:
            return None
        return min((reading for _, reading in self._differences), key=lambda each: each.value)

    def _now(self) -> Iterator[tuple[str, _Course]]:
        """Those that are live, and of which something is known."""
        return ((name, self._courses[name]) for name in self._fresh)

    def _by_steps(
        self,
        span_s: float,
        least: int,
        measure: Callable[[LoadReport, LoadReport], float | None],
        idle: float,
    ) -> Reading | None:
        """The worst; of a replica that has nothing to do it is ``idle``."""
        found = []
        for name, course in self._now():
            load = course[-1].load
            before = _before(course, span_s).load
            if load.step - before.step < least:
                if not (load.running or load.waiting):
                    found.append(Reading(idle, name))
                    continue
                before = _steps_before(course, least).load
            if load.step - before.step >= least:
                value = measure(before, load)
                if value is not None:
                    found.append(Reading(value, name))
        return worst(found)


def worst(readings: Iterator[Reading] | Sequence[Reading]) -> Reading | None:
    """The highest; the first one of several."""
    return max(readings, key=lambda each: each.value, default=None)


def _sample(states: list[tuple[ReplicaState, float]], now: float) -> _Sample | None:
    """What routers say of one replica; None where none has a report."""
    known = [
        (state.load.stamp, -(state.age_s + silent_s), state.load)
        for state, silent_s in states
        if state.load is not None and state.age_s is not None
    ]
    if not known:
        return None
    _, minus_age_s, load = max(known, key=lambda each: each[:2])
    counts = [state.open_sequences for state, _ in states]
    counted = [count for count in counts if count is not None]
    return _Sample(
        at=now,
        load=load,
        age_s=-minus_age_s,
        live=any(state.live for state, _ in states),
        seats=max((state.seats for state, _ in states if state.seats is not None), default=None),
        open_sequences=sum(counted) if len(counted) == len(counts) else None,
    )


def _extend(course: _Course, sample: _Sample) -> None:
    if course and sample.load.step < course[-1].load.step:
        course.clear()
    if len(course) > 1 and sample.at - course[-2].at < GAP_S:
        course.pop()
    course.append(sample)


def _before(course: _Course, span_s: float) -> _Sample:
    """The newest one that is so much older than the last one; else the oldest."""
    last = course[-1]
    return next((each for each in reversed(course) if last.at - each.at >= span_s), course[0])


def _steps_before(course: _Course, steps: int) -> _Sample:
    """The newest one with so many steps since; else the oldest."""
    last = course[-1].load.step
    return next((each for each in reversed(course) if last - each.load.step >= steps), course[0])


def _room(course: _Course) -> float | None:
    """Sequences that run at once, as far as seats and their mean size allow."""
    last = course[-1]
    if last.seats is None:
        return None
    running = sum(each.load.running for each in course)
    blocks = sum(each.load.blocks_used for each in course if each.load.running)
    if running < RUNNING or not blocks:
        return last.seats
    return min(last.seats, last.load.blocks_total * running / blocks)


def _used(course: _Course) -> float:
    """Share of the KV cache, over all that was said lately."""
    loads = [each.load for each in course if each.at > course[-1].at - USED_S]
    return sum(load.blocks_used for load in loads) / sum(load.blocks_total for load in loads)


def _recomputed(course: _Course, sent: int) -> float:
    before, load = _before(course, RECOMPUTED_S).load, course[-1].load
    computed = load.tokens_computed - before.tokens_computed
    sequences = before.running + before.waiting + sent
    shares = [0.0]
    if computed >= RECOMPUTED_TOKENS:
        shares.append((load.tokens_recomputed - before.tokens_recomputed) / computed)
    if sequences >= PREEMPTED_SEQUENCES:
        shares.append((load.preemptions - before.preemptions) / sequences)
    return max(shares)


def _difference(known: Mapping[str, _Sample]) -> Reading:
    """Of the live replica where it is the largest share of the larger count.

    One that is live says its load four times a second, so an old report differs from it altogether.
    What one runs that is out of reach has been given up, and its last report does not say so.
    """
    worst_ = Reading(0.0)
    for name, sample in known.items():
        if sample.live and sample.open_sequences is not None:
            reported = sample.load.running + sample.load.waiting
            larger = max(reported, sample.open_sequences)
            share = 0.0
            if sample.age_s > FRESH_S:
                share = 1.0
            elif larger >= DIFFERS_SEQUENCES:
                share = abs(reported - sample.open_sequences) / larger
            if share > worst_.value:
                worst_ = Reading(share, name)
    return worst_
