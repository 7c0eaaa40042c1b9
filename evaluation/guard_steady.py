"""Does the Guard keep still when it should, and help when it should: ``guard_steady``.

``python -m chairlift.evaluation.guard_steady`` plays ten simulated minutes at 0.7 of the capacity
for each of many seeds, with arrivals by Poisson's law and in bursts of a coefficient of variation
of 2 and 3; then a burst of twice the capacity, with the Guard, in its shadow, and without it, for
the same requests at the same times; then crowds of more clients than there are seats, which ask
again as soon as they are answered or refused. All of it is the closed loop of ``guard_world``.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from statistics import fmean, median

from chairlift.cluster.guard_policy import GuardPolicy, load_policy
from chairlift.cluster.guard_state import Mode, MoveKind, Rung
from chairlift.cluster.protocol import Priority
from chairlift.evaluation.drill_report import Report, at_least, at_most
from chairlift.evaluation.flags import count
from chairlift.evaluation.guard_crowd import study_crowds
from chairlift.evaluation.guard_router import Asked
from chairlift.evaluation.guard_traffic import Traffic
from chairlift.evaluation.guard_world import Course, WorldSettings, capacity, play

__all__ = [
    "Harm",
    "StudySettings",
    "burst",
    "excursions",
    "flaps",
    "harm",
    "main",
    "service_capacity",
    "steady",
    "study",
    "ups",
]

ARRIVALS = ("poisson", "gamma:2", "gamma:3")
BURSTY = "gamma:3"
"""So bursty that what comes in some ten seconds really is more than can be served."""
TENANTS = ("one", "two", "three")
BEST_EFFORT = "nightly"

FLAP_S = 60.0


@dataclass(frozen=True, slots=True)
class StudySettings:
    """How much to play.

    Attributes:
        minutes: of each steady course.
        load: of the capacity, in steady courses and around a burst.
        still: share of the Poisson courses without a move up, at least.
        burst: times the capacity; it begins at ``begin_s`` and lasts ``lasts_s`` of ``whole_s``.
        crowd_seeds: courses of each crowd.
        leave_for_s: how long a rung's signals must be calm around a burst; None for what ships.
    """

    seeds: int = 20
    minutes: float = 10.0
    load: float = 0.7
    still: float = 0.95
    burst: float = 2.0
    begin_s: float = 60.0
    lasts_s: float = 40.0
    whole_s: float = 600.0
    crowd_seeds: int = 5
    leave_for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Harm:
    """What tenants that are no best effort had; each number is that of the worst of them.

    Attributes:
        first_token_s, first_token_p90_s, first_token_p99_s: mean and percentiles, of requests that
            were let in.
        not_in_time: share of what was asked, refused ones included.
        refused: share of what all of them asked.
    """

    first_token_s: float
    first_token_p90_s: float
    first_token_p99_s: float
    not_in_time: float
    refused: float


def service_capacity(settings: StudySettings) -> float:
    """Requests a second."""
    return capacity(_world(settings, "poisson", 1.0))


def steady(settings: StudySettings, arrivals: str, seed: int, rate: float) -> Course:
    """Four tenants that together send ``load`` of what can be served, ``rate``."""
    world = _world(settings, arrivals, rate)
    return play(replace(world, seed=seed, duration_s=60 * settings.minutes))


def burst(settings: StudySettings, mode: Mode, seed: int, rate: float) -> Course:
    """The same, and for a while as much as makes ``burst`` times the capacity."""
    world = _world(settings, "poisson", rate)
    more = (settings.burst - settings.load) / settings.load
    extra = tuple(
        replace(each, rate=more * each.rate, begin_s=settings.begin_s, lasts_s=settings.lasts_s)
        for each in world.traffic
    )
    return play(
        replace(
            world,
            traffic=world.traffic + extra,
            seed=seed,
            mode=mode,
            duration_s=settings.whole_s,
            policy=_policy(settings),
        )
    )


def ups(course: Course) -> int:
    return sum(move.kind is MoveKind.UP for move in course.moves)


def excursions(course: Course) -> int:
    """How often the ladder left its lowest rung."""
    return sum(
        move.before is Rung.NORMAL and move.after is not Rung.NORMAL for move in course.moves
    )


def flaps(course: Course) -> int:
    """How often it went up again within a minute of a step down."""
    fell_at, number = -math.inf, 0
    for move in course.moves:
        if move.kind is MoveKind.DOWN:
            fell_at = move.at
        elif move.kind is MoveKind.UP:
            number += move.at - fell_at < FLAP_S
            fell_at = -math.inf
    return number


def harm(course: Course) -> Harm:
    """To tenants that are no best effort; what is still open has not been in time."""
    target_s = course.settings.first_token_s
    by_tenant: dict[str, list[Asked]] = {}
    for each in course.asked:
        if each.request.priority is not Priority.BATCH:
            by_tenant.setdefault(each.request.tenant, []).append(each)
    everything = [each for asked in by_tenant.values() for each in asked]
    waits = [
        sorted(each.first_token_s(course.settings.duration_s) for each in asked if each.let_in)
        for asked in by_tenant.values()
    ]
    return Harm(
        first_token_s=max(fmean(each) for each in waits),
        first_token_p90_s=max(each[int(0.90 * len(each))] for each in waits),
        first_token_p99_s=max(each[int(0.99 * len(each))] for each in waits),
        not_in_time=max(
            sum(not each.in_time(target_s) for each in asked) / len(asked)
            for asked in by_tenant.values()
        ),
        refused=sum(not each.let_in for each in everything) / len(everything),
    )


def study(settings: StudySettings, tell: Callable[[str], None]) -> Report:
    """All of it; ``tell``: of the progress, line by line."""
    report = Report("guard-steady", asdict(settings))
    rate = service_capacity(settings)
    report.figures["capacity, requests/s"] = rate
    for arrivals in ARRIVALS:
        _study_steady(settings, arrivals, rate, report, tell)
    _study_burst(settings, rate, report, tell)
    study_crowds(settings.crowd_seeds, report, tell)
    return report


def _study_steady(
    settings: StudySettings,
    arrivals: str,
    rate: float,
    report: Report,
    tell: Callable[[str], None],
) -> None:
    courses = []
    for seed in range(settings.seeds):
        course = steady(settings, arrivals, seed, rate)
        courses.append((ups(course), excursions(course), flaps(course), course.highest))
        tell(f"{arrivals}, seed {seed}: {ups(course)} up, highest {course.highest.name.lower()}")
    still = sum(not up for up, *_ in courses) / len(courses)
    report.figures |= {
        f"{arrivals}: moves up in each course": [up for up, *_ in courses],
        f"{arrivals}: times up and down in each course": [times for _, times, *_ in courses],
        f"{arrivals}: share of courses without a move": still,
        f"{arrivals}: highest rung": max(rung for *_, rung in courses).name.lower(),
    }
    most = max(flapped for _, _, flapped, _ in courses)
    bound = 1 if arrivals == BURSTY else 0
    report.claims.append(at_most(f"{arrivals}: times up within a minute of down", most, bound))
    if arrivals == "poisson":
        text = "poisson: share of courses without a move"
        report.claims.append(at_least(text, still, settings.still))


def _study_burst(
    settings: StudySettings, rate: float, report: Report, tell: Callable[[str], None]
) -> None:
    harms: dict[Mode, list[Harm]] = {mode: [] for mode in (Mode.ACT, Mode.SHADOW, Mode.OFF)}
    ends: list[tuple[int, Rung]] = []
    for seed in range(settings.seeds):
        for mode, found in harms.items():
            course = burst(settings, mode, seed, rate)
            found.append(harm(course))
            if mode is Mode.ACT:
                ends.append((excursions(course), course.looks[-1].state.rung))
            tell(f"burst, {mode}, seed {seed}: {found[-1]}")
    for mode, found in harms.items():
        report.figures[f"burst, {mode}: medians for the worst tenant"] = {
            field.name: median(getattr(each, field.name) for each in found)
            for field in fields(Harm)
        }
    pairs = list(zip(harms[Mode.ACT], harms[Mode.OFF], strict=True))
    report.claims += [
        at_most(
            "burst: greatest ratio of the worst share not in time, on over off",
            max(on.not_in_time / off.not_in_time for on, off in pairs),
            1.0,
        ),
        at_most(
            "burst: greatest ratio of the worst mean time to the first token, on over off",
            max(on.first_token_s / off.first_token_s for on, off in pairs),
            1.0,
        ),
        at_most(
            "burst: greatest ratio of the worst p99 time to the first token, on over off",
            max(on.first_token_p99_s / off.first_token_p99_s for on, off in pairs),
            1.0,
        ),
        at_most("burst: times up and down in a course", max(times for times, _ in ends), 1),
        at_most("burst: highest rung at the end of a course", max(rung for _, rung in ends), 0),
        at_most(
            "burst: courses in which the shadow changed anything",
            sum(
                shadow != off
                for shadow, off in zip(harms[Mode.SHADOW], harms[Mode.OFF], strict=True)
            ),
            0,
        ),
    ]


def _world(settings: StudySettings, arrivals: str, rate: float) -> WorldSettings:
    part = settings.load * rate / (len(TENANTS) + 1)
    tenants = tuple(Traffic(name, part, arrivals=arrivals) for name in TENANTS)
    nightly = Traffic(BEST_EFFORT, part, arrivals=arrivals, priority=Priority.BATCH)
    return WorldSettings((*tenants, nightly), 60.0)


def _policy(settings: StudySettings) -> GuardPolicy:
    policy = load_policy()
    if settings.leave_for_s is None:
        return policy
    ladder = policy.ladder.model_copy(update={"leave_for_s": settings.leave_for_s})
    return policy.model_copy(update={"ladder": ladder})


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was found; 0 if every claim holds."""
    parser = argparse.ArgumentParser(
        prog="python -m chairlift.evaluation.guard_steady",
        description=(__doc__ or "").split("\n")[0],
    )
    parser.add_argument("--seeds", type=count, default=20)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", metavar="FILE", help="write the report as JSON, too")
    flags = parser.parse_args(argv)
    settings = StudySettings(
        seeds=flags.seeds, minutes=flags.minutes, crowd_seeds=max(1, flags.seeds // 4)
    )
    report = study(settings, lambda line: print(line, file=sys.stderr))
    print(report.text())
    if flags.json:
        report.write(flags.json)
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
