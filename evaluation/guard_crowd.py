"""A crowd of clients that ask again as soon as they are answered or refused, in simulated time.

It is overload for ever, however the service behaves: where it is slow no fewer wait, and where it
refuses they come again at once, however often. So a share of what comes means nothing to a crowd,
and demoting who is late would let them starve behind newcomers. The study says what the Guard
makes of it, beside the same without a Guard.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from statistics import median

from chairlift.cluster.guard_state import Mode, Rung
from chairlift.evaluation.drill_report import Report, at_least, at_most
from chairlift.evaluation.guard_traffic import Crowd
from chairlift.evaluation.guard_world import Course, WorldSettings, play
from chairlift.router.metrics import Outcome

__all__ = ["Saturation", "crowd", "saturation", "study_crowds"]

TENANTS = ("one", "two")
CROWDS = ((48, 0.05), (48, 1.0), (96, 0.05), (96, 1.0))
"""Clients, twice and four times as many as seats, and how long each waits before it asks again."""
CROWD_S, SETTLED_S = 150.0, 30.0
"""How long it is there, and from when on it is looked at."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """What a crowd got, in each second but for percentiles.

    Attributes:
        ended, in_time: answers; those whose first token was in time.
        asked: with those that were refused.
        first_token_p50_s, first_token_p99_s: of what was let in.
        highest: rung.
    """

    ended: float
    in_time: float
    asked: float
    first_token_p50_s: float
    first_token_p99_s: float
    highest: Rung


def crowd(clients: int, pause_s: float, mode: Mode, seed: int, lasts_s: float = CROWD_S) -> Course:
    """Clients of two tenants that ask again and again, whatever the answer."""
    crowds = tuple(
        Crowd(tenant, clients // 2, pause_s, output="uniform:32,96") for tenant in TENANTS
    )
    return play(WorldSettings((), lasts_s, seed, crowds=crowds, mode=mode))


def saturation(course: Course) -> Saturation:
    """Of what came from ``SETTLED_S`` on."""
    end_s = course.settings.duration_s
    asked = [each for each in course.asked if each.arrived_at >= SETTLED_S]
    ended = [each for each in asked if each.outcome is Outcome.FINISHED]
    waits = sorted(each.first_token_s(end_s) for each in asked if each.let_in)
    return Saturation(
        ended=len(ended) / (end_s - SETTLED_S),
        in_time=sum(each.in_time(course.settings.first_token_s) for each in ended)
        / (end_s - SETTLED_S),
        asked=len(asked) / (end_s - SETTLED_S),
        first_token_p50_s=waits[int(0.50 * len(waits))],
        first_token_p99_s=waits[int(0.99 * len(waits))],
        highest=course.highest,
    )


def study_crowds(seeds: int, report: Report, tell: Callable[[str], None]) -> None:
    """Each crowd with so many seeds, with the Guard and without; ``tell``: of the progress."""
    for clients, pause_s in CROWDS:
        _study(clients, pause_s, seeds, report, tell)


def _study(
    clients: int,
    pause_s: float,
    seeds: int,
    report: Report,
    tell: Callable[[str], None],
) -> None:
    name = f"crowd of {clients} that pause {pause_s:g} s"
    pairs = []
    for seed in range(seeds):
        on, off = (saturation(crowd(clients, pause_s, mode, seed)) for mode in (Mode.ACT, Mode.OFF))
        tell(f"{name}, seed {seed}: with {on}; without {off}")
        pairs.append((on, off))
    for title, side in (("act", 0), ("off", 1)):
        report.figures[f"{name}, {title}: medians"] = {
            field.name: median(getattr(pair[side], field.name) for pair in pairs)
            for field in fields(Saturation)
        }
    report.claims += [
        at_least(
            f"{name}: least gain of answers in time, each second",
            min(on.in_time - off.in_time for on, off in pairs),
            0.0,
        ),
        at_most(
            f"{name}: greatest ratio of the p99 time to the first token, on over off",
            max(on.first_token_p99_s / off.first_token_p99_s for on, off in pairs),
            1.0,
        ),
        at_least(
            f"{name}: least ratio of all answers, on over off",
            min(on.ended / off.ended for on, off in pairs),
            0.8,
        ),
        at_most(f"{name}: highest rung", max(on.highest for on, _ in pairs), Rung.CUT_ADMISSION),
    ]
