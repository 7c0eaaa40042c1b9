"""How far can a replica be filled, and does the Guard speak up in time: ``utilisation``.

``python -m chairlift.evaluation.utilisation`` raises seats and token budget step by step, and for
each setting the load, in simulated time (``guard_world``): what that brings in tokens, and what it
costs in first tokens, stalls and fairness. Each course is played with the Guard in its shadow, so
that it says when it would act and changes nothing; what is found is the curve that its thresholds
stand on.

    knee: the least load at which fewer requests a second are served in time than at a lower one:
    from there on, filling more gives less. The Guard must move there at the latest, and may not
    where there is much room.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from chairlift.cluster.guard_state import Mode, MoveKind, Signal
from chairlift.evaluation.drill_report import Report, at_least, at_most
from chairlift.evaluation.flags import count
from chairlift.evaluation.guard_replica import Machine
from chairlift.evaluation.guard_router import Asked
from chairlift.evaluation.guard_traffic import Traffic
from chairlift.evaluation.guard_world import Course, WorldSettings, capacity, play
from chairlift.router.metrics import Outcome

__all__ = ["Point", "Setting", "knee", "main", "measure", "study"]

TENANTS = ("one", "two", "three", "four")
"""Alike: where one sends more than its share it waits for itself, which is no harm to be seen."""
PROMPT, OUTPUT = "uniform:16,256", "uniform:16,128"
LOADS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25)
ROOM = 0.8
"""At lower loads nothing may move."""
COLUMNS = (
    "seats, tokens",
    "load",
    "tokens/s",
    "in time, requests/s",
    "first token p99",
    "per token p99",
    "late",
    "slowdown, worst over median tenant",
    "computed twice",
    "1% late after",
    "the Guard moves after",
    "for",
)
SETTLED_S, LASTS_S = 20.0, 140.0


@dataclass(frozen=True, slots=True)
class Setting:
    """Of each replica."""

    seats: int
    token_budget: int


SETTINGS = (Setting(4, 64), Setting(8, 128), Setting(16, 256), Setting(32, 512), Setting(64, 1024))


@dataclass(frozen=True, slots=True)
class Point:
    """One setting at one load; times in seconds.

    Attributes:
        load: of what the setting can serve.
        asked, finished: requests; refused ones are not finished.
        in_time: requests a second whose first token was in time.
        first_token_p99_s: of all; what has none yet counts with its age.
        per_token_p99_s: of requests: mean time between their tokens.
        slowdown_ratio: p99 of the worst tenant's time over that of the median one.
        late: share of requests whose first token was late.
        recomputed: share of tokens that were computed twice.
        moved_at_s: when the Guard would first have moved; None: never.
        raised_by: the signal of that.
        late_at_s: when the first ones were late that are more than one in a hundred of all that the
            course has; None: never.
    """

    setting: Setting
    load: float
    asked: int
    finished: int
    tokens_per_s: float
    in_time: float
    first_token_p99_s: float
    per_token_p99_s: float
    slowdown_ratio: float
    late: float
    recomputed: float
    moved_at_s: float | None
    raised_by: str
    late_at_s: float | None


def measure(setting: Setting, load: float, rate: float, seed: int) -> Point:
    """Play one course; ``rate``: requests a second that the setting can serve."""
    course = play(replace(_world(setting, load * rate), seed=seed))
    return _point(course, setting, load)


def knee(points: Iterable[Point]) -> Point | None:
    """Of one setting."""
    most = 0.0
    for each in sorted(points, key=lambda each: each.load):
        if each.in_time < most:
            return each
        most = max(most, each.in_time)
    return None


def study(
    seed: int, tell: Callable[[str], None], settings: Sequence[Setting] = SETTINGS
) -> tuple[Report, list[Point]]:
    """All settings at all loads; ``tell``: of the progress."""
    report, points = Report("utilisation", {"seed": seed}), list[Point]()
    for setting in settings:
        rate = capacity(_world(setting, 1.0))
        of_setting = []
        for load in LOADS:
            of_setting.append(measure(setting, load, rate, seed))
            tell(f"{setting.seats} seats, load {load}: {of_setting[-1]}")
        points += of_setting
        name = f"{setting.seats} seats, {setting.token_budget} tokens"
        moving = [each.load for each in of_setting if each.moved_at_s is not None]
        at = knee(of_setting)
        report.figures[f"{name}: capacity, requests/s"] = rate
        report.figures[f"{name}: loads at which the Guard moves"] = moving
        report.claims += [
            at_most(
                f"{name}: load at which the Guard first moves; the knee is the bound",
                min(moving, default=None),
                LOADS[-1] if at is None else at.load,
            ),
            at_least(
                f"{name}: the same; the load of a course that has much room is the bound",
                min(moving, default=None),
                ROOM,
            ),
        ]
    return report, points


def table(points: Iterable[Point]) -> str:
    """The points in Markdown."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for each in points:
        lost = "–" if each.late_at_s is None else f"{each.late_at_s:.0f} s"
        moved = "–" if each.moved_at_s is None else f"{each.moved_at_s:.0f} s"
        cells = (
            f"{each.setting.seats}, {each.setting.token_budget}",
            f"{each.load:g}",
            f"{each.tokens_per_s:.0f}",
            f"{each.in_time:.2f}",
            f"{each.first_token_p99_s:.2f} s",
            f"{1e3 * each.per_token_p99_s:.0f} ms",
            f"{each.late:.1%}",
            f"{each.slowdown_ratio:.1f}",
            f"{each.recomputed:.1%}",
            lost,
            moved,
            f"`{each.raised_by}`" if each.raised_by else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _world(setting: Setting, rate: float) -> WorldSettings:
    part = rate / len(TENANTS)
    tenants = tuple(Traffic(name, part, prompt=PROMPT, output=OUTPUT) for name in TENANTS)
    machine = Machine(seats=setting.seats, token_budget=setting.token_budget)
    return WorldSettings(tenants, LASTS_S, machine=machine, mode=Mode.SHADOW)


def _point(course: Course, setting: Setting, load: float) -> Point:
    end_s, target_s = course.settings.duration_s, course.settings.first_token_s
    asked = [each for each in course.asked if SETTLED_S <= each.arrived_at]
    finished = [each for each in asked if each.outcome is Outcome.FINISHED]
    waits = [each.first_token_s(end_s) for each in asked]
    moves = [move for move in course.moves if move.kind is MoveKind.UP]
    recomputed = [
        reading.value
        for look in course.looks
        if (reading := look.readings.get(Signal.RECOMPUTATION)) is not None
    ]
    return Point(
        setting=setting,
        load=load,
        asked=len(asked),
        finished=len(finished),
        in_time=sum(wait <= target_s for wait in waits) / (end_s - SETTLED_S),
        tokens_per_s=sum(each.tokens for each in asked) / (end_s - SETTLED_S),
        first_token_p99_s=_p99(waits),
        per_token_p99_s=_p99([_per_token_s(each) for each in finished if each.tokens > 1]),
        slowdown_ratio=_slowdown_ratio(finished, course.settings.machine),
        late=sum(wait > target_s for wait in waits) / len(waits),
        recomputed=sum(recomputed) / len(recomputed) if recomputed else 0.0,
        moved_at_s=course.at_s(moves[0]) if moves else None,
        raised_by=(moves[0].signal or "") if moves else "",
        late_at_s=_lost_at_s(course.asked, target_s),
    )


def _per_token_s(asked: Asked) -> float:
    """Mean time between its tokens; of one that has finished."""
    assert asked.ended_at is not None and asked.first_token_at is not None
    return (asked.ended_at - asked.first_token_at) / (asked.tokens - 1)


def _slowdown_ratio(finished: Iterable[Asked], machine: Machine) -> float:
    """The worst tenant's p99 over the median one's."""
    by_tenant: dict[str, list[float]] = {}
    for each in finished:
        assert each.ended_at is not None
        slowdown = (each.ended_at - each.arrived_at) / _alone_s(each, machine)
        by_tenant.setdefault(each.request.tenant, []).append(slowdown)
    worst = [_p99(slowdowns) for slowdowns in by_tenant.values()]
    return max(worst) / median(worst) if worst else 1.0


def _alone_s(asked: Asked, machine: Machine) -> float:
    """What it takes on an idle replica, but for the positions that it reads."""
    prompt = len(asked.request.prompt)
    steps = math.ceil(prompt / machine.token_budget) + asked.tokens - 1
    return steps * machine.base_s + (prompt + asked.tokens - 1) * machine.per_token_s


def _lost_at_s(asked: Sequence[Asked], target_s: float) -> float | None:
    """When so many had been late that the p99 of all is over the target."""
    late = sorted(each.arrived_at + target_s for each in asked if not each.in_time(target_s))
    borne = int(0.01 * len(asked))
    return late[borne] if len(late) > borne else None


def _p99(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[int(0.99 * len(ordered))] if ordered else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was found; 0 if every claim holds."""
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.utilisation",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--seed", type=count, default=1)
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON, too")
    parser.add_argument("--plot", metavar="FILE", help="draw it as SVG; needs the extra `plots`")
    flags = parser.parse_args(argv)
    report, points = study(flags.seed, lambda line: print(line, file=sys.stderr))
    print(table(points), report.text(), sep="\n\n")
    if flags.json:
        report.write(flags.json)
    if flags.plot:
        # The extra is wanted for pictures alone.
        from chairlift.evaluation.utilisation_plot import draw

        draw(points, Path(flags.plot))
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
