"""What a study found: each threshold passed, failed, or not decided, and why.

Owns which runs count, and which values are held against a threshold (``study_threshold`` decides);
knows neither how runs are made nor how verdicts are shown.

- A run is void where the generator lagged, where too much failed, or where the arms of its round
  were offered different requests. Void runs never count.
- One round gives one value: of the arm, or its ratio to that of the other arm in the same round.
- With ``by`` every group has to pass, and the worst decides.
- p99 of groups that have under 3,000 requests in a run is too rare an event: their p95 is judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.study_cautions import cautions
from chairlift.evaluation.study_measures import MEASURES, Measure, by_group, groups, value
from chairlift.evaluation.study_plan import Plan, Threshold
from chairlift.evaluation.study_run import Fate, Run
from chairlift.evaluation.study_threshold import Bound, Group, State, decide

__all__ = ["ALL", "Group", "Judgement", "State", "Verdict", "VoidRun", "check_measures", "judge"]

ALL = "all"
"""The one group there is without ``by``."""

_GROUP_FOR_P99 = 3_000
_EXIT_CODES: Mapping[State, int] = {
    State.PASSED: 0,
    State.FAILED: 1,
    State.NOT_ENOUGH: 2,
    State.VOID: 2,
}
_WORST_FIRST = (State.FAILED, State.VOID, State.NOT_ENOUGH, State.PASSED)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one threshold; figures are those of its worst group.

    Attributes:
        measure: that was judged; p95 stands in for the p99 of small groups.
        groups: all of them, the worst first; one, ``all``, without ``by``.
        completed: shares of what was offered, of ``arm`` and of ``over``, in the rounds that count.
        cautions: what a reader has to know beside the figure.
    """

    threshold: Threshold
    measure: str
    values_by_round: tuple[float | None, ...]
    estimate: float | None
    interval: tuple[float, float] | None
    p: float | None
    p_against: float | None
    state: State
    reason: str
    more_rounds: int | None
    groups: tuple[Group, ...]
    completed: tuple[float | None, float | None]
    cautions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VoidRun:
    """A run that does not count, and why."""

    workload: str
    arm: str
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """The study's end.

    Attributes:
        exit_code: 0: every threshold passed; 1: one failed at least; 2: neither.
    """

    verdicts: tuple[Verdict, ...]
    void_runs: tuple[VoidRun, ...]
    state: State
    exit_code: int


def check_measures(plan: Plan) -> None:
    """Raises ConfigError where a threshold's measure is unknown, or cannot be had that way."""
    for i, threshold in enumerate(plan.thresholds):
        where = f"thresholds.{i}.measure: {threshold.measure!r}"
        measure = MEASURES.get(threshold.measure)
        if measure is None:
            raise ConfigError(f"{where}: no such measure; there are {', '.join(sorted(MEASURES))}")
        if measure.paired and threshold.over is None:
            raise ConfigError(f"{where} compares two arms: say over")
        if measure.whole and threshold.by is not None:
            raise ConfigError(f"{where} is of whole runs, and cannot be told by {threshold.by}")


def judge(plan: Plan, runs: Sequence[Run]) -> Judgement:
    """Hold the runs against the plan's thresholds.

    Raises:
        ConfigError: the plan's thresholds cannot be judged, see ``check_measures``.
        ValueError: there are two runs of the same arm, workload and round.
    """
    check_measures(plan)
    void_runs = tuple(_void_runs(plan, runs))
    void = {(each.workload, each.arm, each.round) for each in void_runs}
    by_place = {(run.workload, run.arm, run.round): run for run in runs}
    if len(by_place) < len(runs):
        raise ValueError("two runs of the same arm, workload and round")
    verdicts = tuple(
        _verdict(plan, each, _rounds(each, by_place, void)) for each in plan.thresholds
    )
    state = min((each.state for each in verdicts), key=_WORST_FIRST.index)
    return Judgement(verdicts, void_runs, state, _EXIT_CODES[state])


# Void runs


def _void_runs(plan: Plan, runs: Sequence[Run]) -> Iterable[VoidRun]:
    limit = plan.stop.lag_share * min(each.first_token_s for each in plan.targets)
    offered: dict[tuple[str, int], Counter[tuple[int, str, int, int]]] = {}
    unequal = set()
    for run in runs:
        asked = Counter((o.number, o.tenant, o.prompt, o.asked) for o in run.outcomes)
        place = run.workload, run.round
        if offered.setdefault(place, asked) != asked:
            unequal.add(place)
    for run in runs:
        reason = _fault(plan, run, limit)
        if reason is None and (run.workload, run.round) in unequal:
            reason = "the arms of this round were offered different requests"
        if reason is not None:
            yield VoidRun(run.workload, run.arm, run.round, reason)


def _fault(plan: Plan, run: Run, lag_limit: float) -> str | None:
    lag = value(run, "lag_p99_s", plan.targets[0])
    failed = value(run, "failed", plan.targets[0])
    if lag is None or failed is None:
        return "nothing was offered"
    unsent = sum(each.sent_s is None for each in run.outcomes)
    # What is all there at the start has no times to be kept: to hand it over takes what it takes.
    if unsent or (lag > lag_limit and not plan.workloads[run.workload].together):
        never = f"; {unsent} requests were never sent" if unsent else ""
        return f"the generator lagged: p99 {lag:.3g} s, over {lag_limit:.3g} s{never}"
    if failed > plan.stop.failed_share:
        return f"{failed:.1%} failed, over {plan.stop.failed_share:.1%}"
    others, most = run.use.others, plan.stop.others_share
    if others is not None and most is not None and others > most:
        return f"others had {others:.1%} of the processors, over {most:.1%}"
    return None


# One threshold

_Place = tuple[str, str, int]
_Pairs = Sequence[tuple[Run, Run] | None]
"""Runs of ``arm`` and of ``over`` (else of ``arm`` again) by round; None: void or missing."""


@dataclass(frozen=True, slots=True)
class _Rounds:
    """``spoilt``: how many there are with a void run."""

    pairs: _Pairs
    spoilt: int


def _rounds(threshold: Threshold, runs: Mapping[_Place, Run], void: Container[_Place]) -> _Rounds:
    pairs: list[tuple[Run, Run] | None] = []
    spoilt = 0
    for i in range(1 + max((place[2] for place in runs), default=-1)):
        ours = threshold.workload, threshold.arm, i
        theirs = threshold.workload, threshold.over or threshold.arm, i
        bad = ours in void or theirs in void
        there = not bad and ours in runs and theirs in runs
        pairs.append((runs[ours], runs[theirs]) if there else None)
        spoilt += bad
    return _Rounds(pairs, spoilt)


def _verdict(plan: Plan, threshold: Threshold, rounds: _Rounds) -> Verdict:
    pairs, spoilt = rounds.pairs, rounds.spoilt
    measure, swapped = _chosen(threshold, pairs)
    told = _groups(plan, threshold, measure, pairs)
    worst = told[0]
    state, reason = worst.state, worst.reason
    if threshold.by is not None:
        reason = f"{threshold.by} {worst.name}, the worst of {len(told)}: {reason}"
    if spoilt and not any(pairs):
        state, reason = State.VOID, f"no round counts: {spoilt} are void"
    elif spoilt:
        reason += f"; {spoilt} rounds are void"
    return Verdict(
        threshold=threshold,
        measure=measure.name,
        values_by_round=worst.values_by_round,
        estimate=worst.estimate,
        interval=worst.interval,
        p=worst.p,
        p_against=worst.p_against,
        state=state,
        reason=reason,
        more_rounds=worst.more_rounds,
        groups=told,
        completed=_completed(threshold, pairs),
        cautions=(*swapped, *cautions(plan, threshold, pairs, worst.estimate)),
    )


def _chosen(threshold: Threshold, pairs: _Pairs) -> tuple[Measure, tuple[str, ...]]:
    """What is judged, and a word where it is not what the threshold names."""
    named = MEASURES[threshold.measure]
    other = MEASURES.get(threshold.measure.replace("_p99", "_p95"), named)
    if threshold.by is None or other is named:
        return named, ()
    sizes = (
        len(members)
        for pair in pairs
        if pair is not None
        for members in groups(pair[0], threshold.by).values()
    )
    least = min(sizes, default=_GROUP_FOR_P99)
    if least >= _GROUP_FOR_P99:
        return named, ()
    return other, (f"p95 judged, not p99: the smallest group of a run has {least} requests",)


def _groups(plan: Plan, threshold: Threshold, measure: Measure, pairs: _Pairs) -> tuple[Group, ...]:
    """All of them, the worst first."""
    rounds = [{} if pair is None else _reading(plan, threshold, measure, pair) for pair in pairs]
    names = dict.fromkeys(name for each in rounds for name in each) or {ALL: None}
    bound = Bound.of(
        threshold,
        ratio=threshold.over is not None and not measure.paired,
        significance=plan.significance,
        groups=len(names),
    )
    told = [
        decide(
            name,
            tuple(each.get(name) for each in rounds),
            sum(name in each for each in rounds),
            bound,
        )
        for name in names
    ]

    def rank(group: Group) -> tuple[int, float]:
        height = -float("inf") if group.estimate is None else group.estimate
        lower = bound.least or group.estimate is None
        return _WORST_FIRST.index(group.state), height if lower else -height

    return tuple(sorted(told, key=rank))


def _reading(
    plan: Plan, threshold: Threshold, measure: Measure, pair: tuple[Run, Run]
) -> dict[str, float | None]:
    """The value of each group in one round."""

    def of(run: Run, other: Run | None) -> dict[str, float | None]:
        if threshold.by is None:
            return {ALL: value(run, measure.name, targets, other, plan.price_per_hour)}
        return by_group(run, measure.name, threshold.by, targets, other)

    targets = plan.targets[threshold.targets]
    if threshold.over is None or measure.paired:
        return of(pair[0], pair[1] if measure.paired else None)
    ours, theirs = of(pair[0], None), of(pair[1], None)
    return {name: _ratio(one, theirs.get(name)) for name, one in ours.items()}


def _ratio(one: float | None, other: float | None) -> float | None:
    """1 where both are 0: neither is worse."""
    if one is None or other is None:
        return None
    if other <= 0:
        return 1.0 if one <= 0 else float("inf")
    return max(0.0, one) / other


def _completed(threshold: Threshold, pairs: _Pairs) -> tuple[float | None, float | None]:
    def share(runs: Iterable[Run]) -> float | None:
        fates = [outcome.fate for run in runs for outcome in run.outcomes]
        return fates.count(Fate.COMPLETED) / len(fates) if fates else None

    there = [pair for pair in pairs if pair is not None]
    over = None if threshold.over is None else share(run for _, run in there)
    return share(run for run, _ in there), over
