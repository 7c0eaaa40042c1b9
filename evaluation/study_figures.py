"""The pictures of a study: from runs to SVG, one function a picture.

Owns what is drawn of which runs. A picture of requests takes all rounds that count together; one of
a course of time takes the first round that both arms have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from chairlift.cluster.guard_state import Rung
from chairlift.evaluation.percentiles import quantile
from chairlift.evaluation.study_run import Fate, Outcome, Ride, Run
from chairlift.evaluation.study_svg import (
    COLOURS,
    Axis,
    Panel,
    bar,
    dot,
    line,
    picture,
    steps,
    stroke,
    thinned,
)

__all__ = ["Figure", "distribution", "first_tokens", "gaps", "interactivity", "ladder",
           "occupancy", "slowdowns", "timeline"]  # fmt: skip

_POINTS = 160
_RIDES = 3_000
"""Bars of a picture at most; of a longer run the begin is shown."""
_BINS = 60
_TENANTS = 12
_TONES = 5

Runs = Mapping[str, Sequence[Run]]
"""By arm, in the plan's order, which is also that of the colours."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture, and what is to be seen in it."""

    title: str
    caption: str
    svg: str


def first_tokens(outcome: Outcome) -> list[float]:
    return [] if outcome.first_token_s is None else [outcome.first_token_s]


def gaps(outcome: Outcome) -> list[float]:
    return outcome.gaps_s


def distribution(
    runs: Runs, title: str, values: Callable[[Outcome], list[float]], target: float
) -> Figure:
    """Shares of values at or below, of completed requests, with the target as a line."""
    found = {
        arm: [
            each
            for run in of_it
            for outcome in run.outcomes
            if outcome.fate is Fate.COMPLETED
            for each in values(outcome)
        ]
        for arm, of_it in runs.items()
    }
    x = Axis.over(
        "seconds", [target, *(v for of_it in found.values() for v in of_it)], logarithmic=True
    )
    panel = Panel(x, Axis("share", 0, 1))
    lines = [
        line(panel, steps(thinned(of_it, _POINTS)), colour)
        for colour, of_it in enumerate(found.values())
    ]
    mark = stroke(panel, ((target, 0), (target, 1)), "target")
    caption = "share at or below, of completed requests; dashed: the target"
    return Figure(title, caption, picture(panel, [mark, *lines], title))


def interactivity(runs: Runs) -> Figure:
    """Throughput against what one user sees of it: a point a run."""
    points = [
        (colour, run, place)
        for colour, of_it in enumerate(runs.values())
        for run in of_it
        if (place := _interactivity(run)) is not None
    ]
    panel = Panel(
        Axis.over("tokens/s of one request, median", (place[0] for _, _, place in points)),
        Axis.over("tokens/s, all", (place[1] for _, _, place in points)),
    )
    dots = [
        dot(panel, place, colour, f"{run.arm}, round {run.round + 1}: {place[1]:.4g} tokens/s")
        for colour, run, place in points
    ]
    title = "Throughput against interactivity"
    return Figure(title, "a point a run; up and right is better", picture(panel, dots, title))


def _interactivity(run: Run) -> tuple[float, float] | None:
    done = [each for each in run.outcomes if each.fate is Fate.COMPLETED]
    # The inverse of the time per output token: tokens after the first, over the time they took.
    rates = [
        (len(each.tokens_s) - 1) / taken
        for each in done
        if len(each.tokens_s) > 1 and (taken := each.ended_s - each.tokens_s[0]) > 0
    ]
    tokens = sum(len(each.tokens_s) for each in done)
    return (median(rates), tokens / run.seconds) if rates and run.seconds else None


def occupancy(run: Run, until_s: float) -> Figure:
    """Seats over time: a bar a ride, the stronger the longer its output; gaps are empty seats."""
    rides = sorted(run.rides, key=lambda ride: ride.begin_s)[:_RIDES]
    seats = {seat: row for row, seat in enumerate(sorted({ride.seat for ride in rides}))}
    asked = {each.number: each.asked for each in run.outcomes}
    edges = sorted(asked.values())
    end = min(until_s, max((ride.end_s for ride in rides), default=until_s) or until_s)
    panel = Panel(Axis("seconds", 0, until_s), Axis("seats", 0, max(1, len(seats))))

    def look(ride: Ride) -> str:
        rank = sum(edge < asked[ride.number] for edge in edges[:: max(1, len(edges) // _TONES)])
        return f"ride tone{min(_TONES, max(1, rank))}"

    ground = bar(panel, ((0, 0), (end, len(seats))), "empty")
    bars = [
        bar(
            panel,
            ((ride.begin_s, seats[ride.seat] + 0.06), (ride.end_s, seats[ride.seat] + 0.94)),
            look(ride),
        )
        for ride in rides
        if ride.begin_s < until_s
    ]
    used = "" if run.use.seats is None else f"; {run.use.seats:.0%} of the seats' time used"
    title = f"Seats under {run.arm}"
    return Figure(title, f"round {run.round + 1}{used}", picture(panel, [ground, *bars], title))


def slowdowns(runs: Runs) -> Figure | None:
    """Of each tenant: from the median to p95. None where alone is not known."""
    found: dict[str, list[tuple[int, float, float]]] = {}
    for colour, of_it in enumerate(runs.values()):
        for tenant, values in sorted(_by_tenant(of_it).items()):
            middle, high = quantile(values, 0.5), quantile(values, 0.95)
            if middle is not None and high is not None:
                found.setdefault(tenant, []).append((colour, middle, high))
    if not found:
        return None
    order = sorted(found, key=lambda tenant: max(each[2] for each in found[tenant]))[-_TENANTS:]
    each_high = [each[2] for tenant in order for each in found[tenant]]
    each_low = [each[1] for tenant in order for each in found[tenant]]
    panel = Panel(
        Axis.over("times as long as alone", [1.0, *each_high, *each_low], logarithmic=True),
        Axis("", -0.7, len(order) - 0.3),
        height=70 + 24 * len(order),
        left=92,
    )
    marks = []
    for row, tenant in enumerate(order):
        for colour, middle, high in found[tenant]:
            y = row + 0.3 - 0.6 * colour / max(1, len(runs) - 1)
            marks.append(stroke(panel, ((middle, y), (high, y)), f"line s{colour % COLOURS}"))
            marks.append(
                dot(panel, (high, y), colour, f"{tenant}: p95 {high:.3g}, p50 {middle:.3g}")
            )
    title = "Slowdown by tenant"
    shown = [tenant if len(tenant) <= 13 else f"{tenant[:12]}…" for tenant in order]
    more = f"; the {_TENANTS} worst of {len(found)}" if len(found) > _TENANTS else ""
    caption = f"from the median to p95 (dot), all rounds{more}"
    return Figure(title, caption, picture(panel, marks, title, rows=shown))


def _by_tenant(runs: Sequence[Run]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for run in runs:
        for each in run.outcomes:
            if each.slowdown is not None:
                found.setdefault(each.tenant, []).append(each.slowdown)
    return found


def timeline(runs: Mapping[str, Run]) -> Figure:
    """Output tokens a second over the course of one round."""
    end = _end(runs)
    width = end / _BINS
    courses = [_course(run, width) for run in runs.values()]
    y = Axis.over("tokens/s", (rate for course in courses for _, rate in course))
    panel = Panel(Axis("seconds", 0, end), y)
    marks = [line(panel, course, colour) for colour, course in enumerate(courses)]
    title = "Course of a round"
    return Figure(title, _round_of(runs), picture(panel, marks, title))


def ladder(runs: Mapping[str, Run]) -> Figure | None:
    """The Guard's rung over the course of one round; None where it never moved."""
    named = {rung.lower() for run in runs.values() for _, rung in run.moves}
    if not named:
        return None
    everything = [rung.name.lower() for rung in Rung]
    rows = [rung for rung in everything if rung in named or rung == everything[0]]
    rows += sorted(named - set(rows))
    panel = Panel(
        Axis("seconds", 0, _end(runs)),
        Axis("", -0.5, len(rows) - 0.5),
        height=60 + 24 * len(rows),
        left=128,
    )
    marks = []
    for colour, run in enumerate(runs.values()):
        moves = [(at, float(rows.index(rung.lower()))) for at, rung in run.moves]
        course = steps([(0.0, 0.0), *moves])
        # Beside each other where they are on the same rung.
        beside = 0.12 * (colour - (len(runs) - 1) / 2)
        places = [(at, row + beside) for at, row in [*course, (run.seconds, course[-1][1])]]
        marks.append(line(panel, places, colour))
    title = "The Guard's rungs"
    shown = [row.replace("_", " ") for row in rows]
    return Figure(title, _round_of(runs), picture(panel, marks, title, rows=shown))


def _end(runs: Mapping[str, Run]) -> float:
    return max((run.seconds for run in runs.values()), default=0.0) or 1.0


def _round_of(runs: Mapping[str, Run]) -> str:
    return f"round {next(iter(runs.values())).round + 1}"


def _course(run: Run, width: float) -> list[tuple[float, float]]:
    bins = [0] * (_BINS + 1)
    for outcome in run.outcomes:
        for at in outcome.tokens_s:
            bins[min(_BINS, max(0, int(at / width)))] += 1
    last = min(_BINS, int(run.seconds / width) + 1)
    points = [(i * width, tokens / width) for i, tokens in enumerate(bins[:last])]
    return steps([*points, (run.seconds, 0.0)])
