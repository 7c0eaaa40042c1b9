"""Whether a bound is kept, from one value by round.

Owns the rules of evidence; knows neither runs nor measures. They are fixed here, so that nobody
chooses them after having seen the figures:

- A value on the bound keeps it.
- Passed: the sign-flip test finds the rounds' values on the right side of the bound. Failed: it
  finds them on the wrong side. Neither, or under six rounds: not enough evidence.
- A threshold for every round has failed with the first round that breaks it.
- One of many groups looks bad by chance sooner than one alone, so the p that finds a group on the
  wrong side is multiplied by their number. That all of them pass needs no such care.
- A round without a value (nothing completed, or the target does not tell) is no pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf, isfinite, isinf, log
from statistics import median

from chairlift.evaluation.study_plan import Threshold
from chairlift.evaluation.study_statistics import (
    LEAST_ROUNDS,
    median_interval,
    rounds_needed,
    sign_flip,
)

__all__ = ["Bound", "Group", "State", "decide"]

_TIE = 1e-6


class State(StrEnum):
    """Of a threshold, or of the study."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_ENOUGH = "not_enough"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class Bound:
    """What is to be decided.

    Attributes:
        least: the values are to be at least ``at``, otherwise at most.
        ratio: they are ratios, whose distance from the bound is that of their logarithms.
        every_round: no test.
        groups: how many are held against it.
    """

    at: float
    least: bool
    ratio: bool
    every_round: bool
    significance: float
    groups: int = 1

    @classmethod
    def of(cls, threshold: Threshold, *, ratio: bool, significance: float, groups: int) -> Bound:
        """The plan sees to it that a threshold has one of the two bounds."""
        return cls(
            at=(threshold.at_most or 0.0) if threshold.at_least is None else threshold.at_least,
            least=threshold.at_least is not None,
            ratio=ratio,
            every_round=threshold.every_round,
            significance=significance,
            groups=groups,
        )


@dataclass(frozen=True, slots=True)
class Group:
    """What was decided of one group of requests, or of ``all``.

    Attributes:
        values_by_round: None where the round's runs are void, missing, or have no such value.
        estimate, interval: median over the rounds, and its bootstrap interval, which leaves out
            the plan's ``significance`` on each side, and takes six rounds.
        p, p_against: of the test that the bound is kept, and of the one that it is not.
        more_rounds: that it takes, in all likelihood, to decide; None where more do not help.
    """

    name: str
    values_by_round: tuple[float | None, ...]
    estimate: float | None
    interval: tuple[float, float] | None
    p: float | None
    p_against: float | None
    state: State
    reason: str
    more_rounds: int | None = None


def decide(name: str, values: tuple[float | None, ...], rounds: int, bound: Bound) -> Group:
    """Of the values by round; ``rounds``: how many of them should have a value."""
    told = [each for each in values if each is not None]
    margins = _margins(told, bound)
    p = against = None
    if told and not bound.every_round:
        p = sign_flip(margins)
        against = min(1.0, bound.groups * sign_flip([-margin for margin in margins]))
    state = _state(margins, rounds, bound, (p, against))
    more = None
    if state is State.NOT_ENOUGH and len(told) == rounds:
        more = _more(margins, bound)
    enough = len(told) >= LEAST_ROUNDS
    return Group(
        name=name,
        values_by_round=values,
        estimate=median(told) if told else None,
        interval=median_interval(told, bound.significance) if enough else None,
        p=p,
        p_against=against,
        state=state,
        reason=_reason(margins, rounds, state, more),
        more_rounds=more,
    )


def _margins(values: Sequence[float], bound: Bound) -> list[float]:
    """How far each value is on the right side of the bound.

    What lies on the bound is a trifle on the right side of it. What is infinitely far counts as far
    as the farthest other, or as 1 without any.
    """
    if bound.ratio:
        distances = [log(each / bound.at) if each > 0 else -inf for each in values]
    else:
        distances = [each - bound.at for each in values]
    farthest = max((abs(each) for each in distances if isfinite(each)), default=0.0) or 1.0
    near = [farthest * (1 if each > 0 else -1) if isinf(each) else each for each in distances]
    return [(each if bound.least else -each) or _TIE * farthest for each in near]


def _state(
    margins: Sequence[float], rounds: int, bound: Bound, p: tuple[float | None, float | None]
) -> State:
    kept, against = p
    if bound.every_round and any(margin < 0 for margin in margins):
        return State.FAILED
    if len(margins) < LEAST_ROUNDS:
        return State.NOT_ENOUGH
    if against is not None and against <= bound.significance:
        return State.FAILED
    passed = bound.every_round or (kept is not None and kept <= bound.significance)
    return State.PASSED if passed and len(margins) == rounds else State.NOT_ENOUGH


def _more(margins: Sequence[float], bound: Bound) -> int | None:
    least = max(1, LEAST_ROUNDS - len(margins))
    if bound.every_round or not margins:
        return least
    # Against one of many groups it takes more: see the module.
    many = 1 if sum(margins) > 0 else bound.groups
    needed = rounds_needed(margins, bound.significance / many)
    return None if needed is None else max(least, needed - len(margins))


def _reason(margins: Sequence[float], rounds: int, state: State, more: int | None) -> str:
    number = len(margins)
    if not rounds:
        return "there are no runs that count"
    if not number:
        return "no run has such a value"
    told = f"the bound is kept in {sum(margin > 0 for margin in margins)} of {number} rounds"
    if state is not State.NOT_ENOUGH:
        return told
    if number < rounds:
        return f"{told}; {rounds - number} more have no such value, and with them it cannot pass"
    if number < LEAST_ROUNDS:
        told += f"; it takes {LEAST_ROUNDS} rounds at the least"
    if more is None:
        return f"{told}; at the spread seen, no reasonable number of rounds decides it"
    return f"{told}; at the spread seen, {more} more decide it with a chance of 4 in 5"
