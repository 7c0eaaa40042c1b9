"""What stands in a report besides the verdicts: every measure of every run, and what follows.

Owns which figures are computed; draws and words nothing. A figure over rounds is the median of the
rounds' own; percentiles are never averaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, log
from statistics import median
from typing import TypeVar

from chairlift.evaluation.study_files import to_tree
from chairlift.evaluation.study_measures import (
    GROUPINGS,
    MEASURES,
    Measure,
    by_group,
    run_interval,
    value,
)
from chairlift.evaluation.study_plan import Plan
from chairlift.evaluation.study_run import Fate, Run
from chairlift.evaluation.study_verdict import Judgement, judge

__all__ = ["Findings", "Loss", "Losses", "Measured", "Row", "Within", "find", "losses", "pairs",
           "rows", "where_worse", "within_runs", "worse_groups"]  # fmt: skip

T = TypeVar("T")

_ALIKE = 0.02
"""A median ratio nearer to 1 than this is no difference worth a line."""

_OF_GROUPS = ("first_token_p95_s", "inter_token_p95_s", "end_to_end_p95_s")
"""Groups are too small for more, see ``study_verdict``."""

_OF_RUNS = ("first_token_p50_s", "first_token_p99_s", "end_to_end_p99_s", "in_time")
_TAIL = 0.025
"""Left out on each side of an interval."""

_NO_MERIT = frozenset({"lag_p99_s", "seats_use", "kv_use", "budget_use"})
"""Tells of the generator, or of what was used, which is not what users get."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One run's measures by name; with ``[1]`` behind those of the plan's second targets."""

    workload: str
    arm: str
    round: int
    values: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Row:
    """One measure of a workload, by arm; None where no run tells."""

    workload: str
    measure: str
    unit: str
    by_arm: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class Loss:
    """Where an arm is the worse one.

    Attributes:
        group: of requests, "" for all.
        value, other: of ``arm`` and of ``over``: medians over the rounds.
        ratio: median over the rounds of their ratio.
    """

    workload: str
    arm: str
    over: str
    measure: str
    group: str
    value: float | None
    other: float | None
    ratio: float

    @property
    def by_how_much(self) -> float:
        """To sort by, the worst first."""
        return abs(log(self.ratio)) if self.ratio > 0 else inf


@dataclass(frozen=True, slots=True)
class Losses:
    """Requests of an arm that got no full answer, by fate and why, over all rounds."""

    workload: str
    arm: str
    offered: int
    completed: int
    by_why: dict[str, int]


@dataclass(frozen=True, slots=True)
class Within:
    """How sure one run's own figure is: a bootstrap interval from blocks of its time."""

    workload: str
    measure: str
    arm: str
    round: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Findings:
    """All that follows from a study's runs."""

    judgement: Judgement
    measured: list[Measured]
    runs: tuple[Run, ...]

    @property
    def counting(self) -> list[Measured]:
        """Of runs that are not void."""
        void = self._void()
        return [e for e in self.measured if (e.workload, e.arm, e.round) not in void]

    @property
    def counting_runs(self) -> list[Run]:
        """Those that are not void."""
        void = self._void()
        return [run for run in self.runs if (run.workload, run.arm, run.round) not in void]

    def as_tree(self) -> dict[str, object]:
        """As ``judgement.json`` has it."""
        return to_tree({"judgement": self.judgement, "measures": self.measured})

    def _void(self) -> set[tuple[str, str, int]]:
        return {(each.workload, each.arm, each.round) for each in self.judgement.void_runs}


def find(plan: Plan, runs: Sequence[Run]) -> Findings:
    """Judge and measure; the same runs always give the same findings."""
    return Findings(judge(plan, runs), measure_runs(plan, runs), tuple(runs))


def pairs(plan: Plan) -> list[tuple[str, str]]:
    """The arms that thresholds compare, each pair once: (arm, over)."""
    found = [(each.arm, each.over) for each in plan.thresholds if each.over is not None]
    return list(dict.fromkeys((arm, over) for arm, over in found if over is not None))


def measure_runs(plan: Plan, runs: Sequence[Run]) -> list[Measured]:
    """Everything that can be measured of each run."""
    others = dict(pairs(plan))
    found = {(run.workload, run.arm, run.round): run for run in runs}
    return [
        Measured(
            run.workload,
            run.arm,
            run.round,
            _values(plan, run, found.get((run.workload, others.get(run.arm, ""), run.round))),
        )
        for run in runs
    ]


def _values(plan: Plan, run: Run, other: Run | None) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name, measure in MEASURES.items():
        deadlines = plan.targets if measure.deadlines else plan.targets[:1]
        for index, targets in enumerate(deadlines):
            named = f"{name}[{index}]" if index else name
            found[named] = value(run, name, targets, other, plan.price_per_hour)
    return found


def rows(plan: Plan, measured: Sequence[Measured]) -> list[Row]:
    """The medians over rounds; measures that nobody tells are left out."""
    found = []
    for workload in plan.workloads:
        of_it = [each for each in measured if each.workload == workload]
        for name in dict.fromkeys(name for each in of_it for name in each.values):
            by_arm = {
                arm: _median(each.values.get(name) for each in of_it if each.arm == arm)
                for arm in plan.arms
            }
            if any(each is not None for each in by_arm.values()):
                found.append(Row(workload, name, _measure(name).unit, by_arm))
    return found


def where_worse(plan: Plan, measured: Sequence[Measured]) -> list[Loss]:
    """Measures in which an arm that is put forward is worse than the other, the worst first."""
    by_place = {(each.workload, each.arm, each.round): each.values for each in measured}
    return _sorted(
        _loss(
            workload,
            both,
            (name, ""),
            [(m.get(name), t.get(name)) for m, t in _beside(by_place, workload, both)],
        )
        for workload, both in product(plan.workloads, pairs(plan))
        for name in dict.fromkeys(name for each in measured for name in each.values)
    )


def worse_groups(plan: Plan, runs: Sequence[Run]) -> list[Loss]:
    """The same of groups of requests: tenants, and short and long ones."""
    by_place = {(run.workload, run.arm, run.round): run for run in runs}
    found = []
    for workload, both in product(plan.workloads, pairs(plan)):
        beside = _beside(by_place, workload, both)
        for name, by in product(_OF_GROUPS, GROUPINGS):
            told = [
                [by_group(run, name, by, plan.targets[0]) for run in of_round]
                for of_round in beside
            ]
            for group in dict.fromkeys(group for mine, _ in told for group in mine):
                values = [(mine.get(group), theirs.get(group)) for mine, theirs in told]
                found.append(_loss(workload, both, (name, f"{by} {group}"), values))
    return _sorted(found)


def within_runs(plan: Plan, runs: Sequence[Run]) -> list[Within]:
    """Intervals of the first run that each arm has on each workload.

    They tell how much of a tail is chance within a run, and nothing of what differs between runs:
    thresholds go by rounds.
    """
    first = {
        (run.workload, run.arm): run
        for run in sorted(runs, key=lambda run: run.round, reverse=True)
    }
    found = []
    for workload, name, arm in product(plan.workloads, _OF_RUNS, plan.arms):
        run = first.get((workload, arm))
        told = None if run is None else run_interval(run, name, plan.targets[0], _TAIL)
        if run is not None and told is not None:
            found.append(Within(workload, name, arm, run.round, *told))
    return found


def _beside(
    by_place: Mapping[tuple[str, str, int], T], workload: str, both: tuple[str, str]
) -> list[tuple[T, T]]:
    """What two arms have in the same rounds."""
    arm, over = both
    return [
        (mine, by_place[workload, over, place[2]])
        for place, mine in by_place.items()
        if place[:2] == (workload, arm) and (workload, over, place[2]) in by_place
    ]


def _loss(
    workload: str,
    both: tuple[str, str],
    of: tuple[str, str],
    values: Sequence[tuple[float | None, float | None]],
) -> Loss | None:
    """None where the arm is as good or better; ``of``: measure and group."""
    ratio = _median(_ratio(mine, theirs) for mine, theirs in values)
    if ratio is None or not _is_worse(of[0], ratio):
        return None
    mine, theirs = (_median(each[side] for each in values) for side in (0, 1))
    return Loss(workload, *both, *of, mine, theirs, ratio)


def _sorted(found: Iterable[Loss | None]) -> list[Loss]:
    losses = [each for each in found if each is not None]
    return sorted(losses, key=lambda loss: loss.by_how_much, reverse=True)


def losses(plan: Plan, runs: Sequence[Run]) -> list[Losses]:
    """By workload and arm, in the plan's order; what completed everywhere is there too."""
    found = []
    for workload in plan.workloads:
        for arm in plan.arms:
            of_it = [run for run in runs if (run.workload, run.arm) == (workload, arm)]
            outcomes = [each for run in of_it for each in run.outcomes]
            if not outcomes:
                continue
            bad = [each for each in outcomes if each.fate is not Fate.COMPLETED]
            why = Counter(
                f"{each.fate}: {each.why}" if each.why else str(each.fate) for each in bad
            )
            done = len(outcomes) - len(bad)
            found.append(Losses(workload, arm, len(outcomes), done, dict(why.most_common())))
    return found


def _is_worse(name: str, ratio: float) -> bool:
    measure = _measure(name)
    if measure.paired or measure.name in _NO_MERIT:
        return False
    return ratio < 1 - _ALIKE if measure.more_is_better else ratio > 1 + _ALIKE


def _ratio(mine: float | None, theirs: float | None) -> float | None:
    return None if mine is None or not theirs else mine / theirs


def _measure(name: str) -> Measure:
    return MEASURES[name.partition("[")[0]]


def _median(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return median(known) if known else None
