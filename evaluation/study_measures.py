"""What is measured of a run: names, units, and one definition for each.

Owns the definitions, and the groups that requests fall into; knows neither thresholds nor how runs
are compared. Everything that was offered counts: a share is a share of it, and latencies, which
only completed requests have, are to be read beside ``completed``.

The measures, where LEVEL is mean, p50, p90, p95 or p99:

    first_token_LEVEL_s, end_to_end_LEVEL_s     from when the request was meant to be sent
    time_per_output_token_LEVEL_s               after the first token, by request
    inter_token_LEVEL_s, longest_gap_LEVEL_s    by token, and the longest of each request
    slowdown_LEVEL                              end to end over that alone on an idle machine
    output_tokens_per_s, requests_per_s         of completed requests
    goodput, in_time                            completed with both targets kept: per s, and a share
    tokens_late                                 share of tokens past their deadlines, or missing
    completed, refused, gave_up, failed         shares
    right_length, tokens_equal                  within 10% of what was asked; as in the other arm
    seats_use, kv_use, budget_use               shares, over the time
    preemptions, recomputed                     sequences, tokens
    energy_per_token_j, cost_per_good_request   of completed output tokens; of requests in time
    lag_p99_s                                   of the generator
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from statistics import fmean

from chairlift.evaluation.percentiles import quantile
from chairlift.evaluation.study_plan import TokenTargets
from chairlift.evaluation.study_run import Fate, Outcome, Run
from chairlift.evaluation.study_statistics import block_interval

__all__ = [
    "GROUPINGS",
    "MEASURES",
    "OUTPUT_EDGES",
    "PROMPT_EDGES",
    "Measure",
    "View",
    "Worst",
    "by_group",
    "groups",
    "run_interval",
    "value",
    "worst",
]

PROMPT_EDGES = (64, 512)
OUTPUT_EDGES = (16, 128)
"""Tokens up to which a prompt or output is short, and medium; what is longer is long."""

_BLOCKS = 20
_LEVELS: Mapping[str, float | None] = {
    "mean": None,
    "p50": 0.5,
    "p90": 0.9,
    "p95": 0.95,
    "p99": 0.99,
}


@dataclass(frozen=True, slots=True)
class View:
    """What a measure is taken of.

    Attributes:
        outcomes: those of the run, or of one group of it.
        others: the same requests in the arm that it is compared with, by number.
        price_per_hour: of a replica.
    """

    run: Run
    outcomes: Sequence[Outcome]
    targets: TokenTargets
    others: Mapping[int, Outcome] | None = None
    price_per_hour: float = 1.0

    @property
    def done(self) -> list[Outcome]:
        return [each for each in self.outcomes if each.fate is Fate.COMPLETED]

    @property
    def output_tokens(self) -> int:
        return sum(len(each.tokens_s) for each in self.done)

    @property
    def good(self) -> int:
        return sum(map(self._in_time, self.done))

    def _in_time(self, outcome: Outcome) -> bool:
        first, each = outcome.first_token_s, _per_token(outcome)
        if first is None or first > self.targets.first_token_s:
            return False
        return each is None or each <= self.targets.per_token_s


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a run.

    Attributes:
        unit: "" for plain numbers and shares.
        of: None where there is no such figure.
        deadlines: depends on the targets for tokens.
        paired: compares with the other arm, request by request, so it has no ratio.
        whole: of a run only, not of a group of its requests.
        latency: of completed requests, whose share belongs beside it.
    """

    name: str
    unit: str
    more_is_better: bool
    of: Callable[[View], float | None]
    deadlines: bool = False
    paired: bool = False
    whole: bool = False
    latency: bool = False


def value(
    run: Run,
    name: str,
    targets: TokenTargets,
    other: Run | None = None,
    price_per_hour: float = 1.0,
) -> float | None:
    """A measure of a whole run; ``other``: the run of the other arm, for paired measures."""
    return MEASURES[name].of(View(run, run.outcomes, targets, _numbered(other), price_per_hour))


def by_group(
    run: Run,
    name: str,
    by: str,
    targets: TokenTargets,
    other: Run | None = None,
) -> dict[str, float | None]:
    """A measure of each group of a run's requests, by the group's name."""
    others = _numbered(other)
    return {
        group: MEASURES[name].of(View(run, outcomes, targets, others))
        for group, outcomes in groups(run, by).items()
    }


def run_interval(
    run: Run, name: str, targets: TokenTargets, tail: float
) -> tuple[float, float] | None:
    """Bootstrap interval of a measure of requests, from twenty blocks of the run's time.

    A request belongs to the block in which it ended.
    """
    measure = MEASURES[name]
    if measure.whole or measure.paired:
        return None
    length = max(run.seconds, 1e-9) / _BLOCKS
    blocks: list[list[Outcome]] = [[] for _ in range(_BLOCKS)]
    for each in run.outcomes:
        blocks[min(_BLOCKS - 1, max(0, int(each.ended_s / length)))].append(each)
    return block_interval(blocks, lambda drawn: measure.of(View(run, drawn, targets)), tail)


def _numbered(run: Run | None) -> Mapping[int, Outcome] | None:
    return None if run is None else {each.number: each for each in run.outcomes}


# Groups


def groups(run: Run, by: str) -> dict[str, tuple[Outcome, ...]]:
    """Requests by ``tenant``, ``prompt_class`` or ``output_class``."""
    key = GROUPINGS[by]
    ordered = sorted(run.outcomes, key=key)
    return {name: tuple(members) for name, members in groupby(ordered, key)}


def _class(length: int, edges: tuple[int, int]) -> str:
    short, medium = edges
    if length <= short:
        return f"short (to {short})"
    return f"medium (to {medium})" if length <= medium else f"long (over {medium})"


GROUPINGS: Mapping[str, Callable[[Outcome], str]] = {
    "tenant": lambda outcome: outcome.tenant,
    "prompt_class": lambda outcome: _class(outcome.prompt, PROMPT_EDGES),
    "output_class": lambda outcome: _class(outcome.asked, OUTPUT_EDGES),
}


# Definitions


def _per_token(outcome: Outcome) -> float | None:
    first, tokens = outcome.first_token_s, len(outcome.tokens_s)
    if first is None or tokens < 2:
        return None
    return (outcome.end_to_end_s - first) / (tokens - 1)


def _present(values: Iterable[float | None]) -> list[float]:
    return [each for each in values if each is not None]


_FAMILIES: Mapping[str, tuple[str, Callable[[Sequence[Outcome]], list[float]]]] = {
    "first_token": ("s", lambda done: _present(each.first_token_s for each in done)),
    "time_per_output_token": ("s", lambda done: _present(map(_per_token, done))),
    "inter_token": ("s", lambda done: list(chain.from_iterable(each.gaps_s for each in done))),
    "longest_gap": ("s", lambda done: [max(gaps) for each in done if (gaps := each.gaps_s)]),
    "end_to_end": ("s", lambda done: [each.end_to_end_s for each in done]),
    "slowdown": ("", lambda done: _present(each.slowdown for each in done)),
}


def _level(
    values: Callable[[Sequence[Outcome]], list[float]], level: float | None, view: View
) -> float | None:
    told = values(view.done)
    if level is not None:
        return quantile(told, level)
    return fmean(told) if told else None


def _latencies() -> Iterator[Measure]:
    for family, (unit, values) in _FAMILIES.items():
        for name, level in _LEVELS.items():
            full = f"{family}_{name}_{unit}" if unit else f"{family}_{name}"
            yield Measure(full, unit, False, partial(_level, values, level), latency=True)


def _over(amount: float | None, whole: float) -> float | None:
    return None if amount is None or not whole else amount / whole


def _share(fate: Fate, view: View) -> float | None:
    return _over(sum(each.fate is fate for each in view.outcomes), len(view.outcomes))


def _tokens_late(view: View) -> float | None:
    kept = sum(
        at <= each.intended_s + view.targets.first_token_s + i * view.targets.per_token_s
        for each in view.outcomes
        for i, at in enumerate(each.tokens_s[: each.asked])
    )
    asked = sum(each.asked for each in view.outcomes)
    return _over(asked - kept, asked)


def _right_length(view: View) -> float | None:
    right = sum(0.9 <= len(each.tokens_s) / each.asked <= 1.1 for each in view.done if each.asked)
    return _over(right, len(view.done))


def _tokens_equal(view: View) -> float | None:
    """Of requests that both arms completed."""
    pairs = [
        (each.digest, other.digest)
        for each in view.done
        if (other := (view.others or {}).get(each.number)) is not None
        and other.fate is Fate.COMPLETED
        and each.digest is not None
    ]
    return _over(sum(one == other for one, other in pairs), len(pairs))


def _lag(view: View) -> float | None:
    """What was never sent lags as long as it was there."""
    return quantile(
        (
            (each.ended_s if each.sent_s is None else each.sent_s) - each.intended_s
            for each in view.outcomes
        ),
        0.99,
    )


def _cost(view: View) -> float | None:
    hours = view.run.seconds * view.run.replicas / 3600
    return _over(hours * view.price_per_hour, view.good)


def _by_name(measures: Iterable[Measure]) -> Mapping[str, Measure]:
    return {measure.name: measure for measure in measures}


MEASURES: Mapping[str, Measure] = _by_name(
    [
        *_latencies(),
        Measure(
            "output_tokens_per_s",
            "tokens/s",
            True,
            lambda view: _over(view.output_tokens, view.run.seconds),
        ),
        Measure(
            "requests_per_s", "1/s", True, lambda view: _over(len(view.done), view.run.seconds)
        ),
        Measure(
            "goodput",
            "1/s",
            True,
            lambda view: _over(view.good, view.run.seconds),
            deadlines=True,
        ),
        Measure(
            "in_time", "", True, lambda view: _over(view.good, len(view.outcomes)), deadlines=True
        ),
        Measure("tokens_late", "", False, _tokens_late, deadlines=True),
        Measure("completed", "", True, partial(_share, Fate.COMPLETED)),
        Measure("refused", "", False, partial(_share, Fate.REFUSED)),
        Measure("gave_up", "", False, partial(_share, Fate.GAVE_UP)),
        Measure("failed", "", False, partial(_share, Fate.FAILED)),
        Measure("right_length", "", True, _right_length),
        Measure("tokens_equal", "", True, _tokens_equal, paired=True),
        Measure("seats_use", "", True, lambda view: view.run.use.seats, whole=True),
        Measure("kv_use", "", True, lambda view: view.run.use.kv, whole=True),
        Measure("budget_use", "", True, lambda view: view.run.use.budget, whole=True),
        Measure("preemptions", "", False, lambda view: view.run.use.preemptions, whole=True),
        Measure("recomputed", "tokens", False, lambda view: view.run.use.recomputed, whole=True),
        Measure(
            "energy_per_token_j",
            "J",
            False,
            lambda view: _over(view.run.use.energy_j, view.output_tokens),
            whole=True,
        ),
        Measure("cost_per_good_request", "", False, _cost, deadlines=True, whole=True),
        Measure("lag_p99_s", "s", False, _lag, whole=True),
    ]
)


# The worst cases


@dataclass(frozen=True, slots=True)
class Worst:
    """One request that fared badly, and what became of it, in a sentence."""

    outcome: Outcome
    story: str


def worst(run: Run, number: int) -> tuple[Worst, ...]:
    """So many requests, the worst first.

    Those that did not complete come first, by the time that they cost; then those with the greatest
    slowdown or, where alone is not known, those that took longest.
    """
    ordered = sorted(run.outcomes, key=_badness, reverse=True)[:number]
    return tuple(Worst(each, _story(run, each)) for each in ordered)


def _badness(outcome: Outcome) -> tuple[bool, float, float]:
    unfinished = outcome.fate is not Fate.COMPLETED
    return unfinished, outcome.slowdown or 0.0, outcome.end_to_end_s


def _story(run: Run, outcome: Outcome) -> str:
    told = [f"{outcome.prompt} tokens in, {len(outcome.tokens_s)} of {outcome.asked} out"]
    if outcome.first_token_s is None:
        told.append("no first token")
    else:
        told.append(f"first token after {outcome.first_token_s:.3g} s")
    if gaps := outcome.gaps_s:
        longest = max(range(len(gaps)), key=gaps.__getitem__)
        told.append(f"longest gap {gaps[longest]:.3g} s before token {longest + 2}")
    rides = [ride for ride in run.rides if ride.number == outcome.number]
    if rides:
        told.append(f"seated at {rides[0].begin_s:.3g} s, {len(rides) - 1} times preempted")
    end = "completed" if outcome.fate is Fate.COMPLETED else f"{outcome.fate} {outcome.why}".strip()
    slower = f", {outcome.slowdown:.3g} times as long as alone" if outcome.slowdown else ""
    told.append(f"{end} after {outcome.end_to_end_s:.3g} s{slower}")
    return "; ".join(told)
