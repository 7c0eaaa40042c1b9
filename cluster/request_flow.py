"""Whether what routers say of their requests can be true: Little's law over the last half minute.

Owns a short memory of what each router has counted. Three numbers that are counted apart are held
against each other, at the ends of whole seconds, where no request is counted by halves:

    ∫ open dt  =  Σ time of all that ended  +  age of those open at the end  -  at the begin
    open       =  started - ended

Both hold for any traffic, steady or not, so that nothing has to be assumed of it; Little's law
(1961) is the first in the long run. Pure: times are passed in, as seconds of the wall clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from chairlift.cluster.guard_state import Reading
from chairlift.cluster.windows import Flow

__all__ = ["RequestFlow"]

LEAST_S, MOST_S = 20.0, 30.0
"""How long it is looked at."""

REQUEST_S = 10.0
"""Request-seconds in that time, below which nothing is said: routers look at what is open a few
times a second only."""

REQUESTS = 4
"""The same for requests that are open."""


class RequestFlow:
    """Of all routers; to be told each time that they have reported."""

    def __init__(self) -> None:
        self._courses: dict[str, deque[tuple[float, Flow]]] = {}

    def observe(self, flows: Mapping[str, Flow], now: float) -> None:
        """``flows``: of the routers that are there."""
        self._courses = {name: self._courses.get(name, deque()) for name in flows}
        for name, flow in flows.items():
            course = self._courses[name]
            if not course or course[-1][1] != flow:
                course.append((now, flow))
            while course[0][0] < now - MOST_S:
                course.popleft()
                if not course:  # it has said nothing new for all that time
                    course.append((now, flow))

    def contradiction(self) -> Reading:
        """By how much of itself either differs; 0 where there is too little to say."""
        times = {name: pair for name, each in self._courses.items() if (pair := _times(each))}
        counts = {name: pair for name, each in self._courses.items() if (pair := _counts(each))}
        return max(_apart(times, REQUEST_S), _apart(counts, REQUESTS), key=lambda each: each.value)


def _times(course: deque[tuple[float, Flow]]) -> tuple[float, float] | None:
    """Request-seconds, counted both ways."""
    (first_at, first), (last_at, last) = course[0], course[-1]
    if last_at - first_at < LEAST_S or first.open_age_s is None or last.open_age_s is None:
        return None
    spent_s = last.spent_s - first.spent_s + last.open_age_s - first.open_age_s
    return last.open_s - first.open_s, spent_s


def _counts(course: deque[tuple[float, Flow]]) -> tuple[float, float] | None:
    """Open requests, counted both ways."""
    last = course[-1][1]
    return None if last.open is None else (last.open, last.unended)


def _apart(pairs: Mapping[str, tuple[float, float]], least: float) -> Reading:
    """Over all routers, as a share of the larger numbers; where it is largest."""
    apart = {name: abs(one - other) for name, (one, other) in pairs.items()}
    larger = sum(max(pair) for pair in pairs.values())
    if larger < least or not any(apart.values()):
        return Reading(0.0)
    return Reading(sum(apart.values()) / larger, max(apart, key=lambda name: apart[name]))
