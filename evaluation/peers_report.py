"""What servers came to under the same loads, and how many times better the first one is.

Owns the figures that are compared, the ratios and their tables; measures nothing. One run of a load
is one unit, since its requests share a queue: a ratio is taken between two runs of one round, and
the median and the range are over the rounds. Every ratio is turned so that above 1 the first server
is the better one. A round in which a request of either failed gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from rich.table import Table

from chairlift.evaluation.load_run import LoadRun
from chairlift.evaluation.records import steady_tokens_per_s, summarise

__all__ = ["Figures", "Ratio", "Run", "figures_of", "figures_table", "ratio_table", "ratios"]

Each = TypeVar("Each")


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run; times in seconds, None where there was nothing to measure.

    Attributes:
        output_tokens_per_s: from the first request's sending to the last token.
        steady_tokens_per_s: while every seat of the load is past its first token; of closed loads.
        first_token_…: by request, since it was meant to be sent.
        inter_token_…: by token.
        client_cpu: share of one core that the client took.
    """

    output_tokens_per_s: float
    steady_tokens_per_s: float | None
    first_token_mean: float | None
    first_token_p50: float | None
    first_token_p99: float | None
    inter_token_mean: float | None
    inter_token_p99: float | None
    prompt_tokens: int
    output_tokens: int
    seconds: float
    failures: dict[str, int]
    details: dict[str, str]
    client_cpu: float


@dataclass(frozen=True, slots=True)
class Run:
    """One load, once, on one server."""

    load: str
    round: int
    target: str
    figures: Figures


@dataclass(frozen=True, slots=True)
class Ratio:
    """The first server against another in one figure, round by round."""

    load: str
    other: str
    figure: str
    values: tuple[float, ...]
    median: float


_FIGURES: dict[str, tuple[str, float, Callable[[float, float], float]]] = {
    "output_tokens_per_s": ("output tokens/s", 1, lambda first, other: first / other),
    "steady_tokens_per_s": ("steady tokens/s", 1, lambda first, other: first / other),
    "first_token_mean": ("first token mean, ms", 1e3, lambda first, other: other / first),
    "first_token_p50": ("first token p50, ms", 1e3, lambda first, other: other / first),
    "first_token_p99": ("first token p99, ms", 1e3, lambda first, other: other / first),
    "inter_token_mean": ("inter-token mean, ms", 1e3, lambda first, other: other / first),
    "inter_token_p99": ("inter-token p99, ms", 1e3, lambda first, other: other / first),
}
"""Heading, factor of what is shown, and what "times better" means."""


def figures_of(run: LoadRun) -> Figures:
    """The figures of a run, by the definitions of ``records``."""
    summary = summarise(run.records)
    first, between = summary.time_to_first_token, summary.inter_token_latency
    in_flight = run.load.in_flight
    return Figures(
        output_tokens_per_s=summary.output_tokens_per_s,
        steady_tokens_per_s=(
            None if in_flight is None else steady_tokens_per_s(run.records, in_flight)
        ),
        first_token_mean=first.mean if first else None,
        first_token_p50=first.p50 if first else None,
        first_token_p99=first.p99 if first else None,
        inter_token_mean=between.mean if between else None,
        inter_token_p99=between.p99 if between else None,
        prompt_tokens=summary.prompt_tokens,
        output_tokens=summary.output_tokens,
        seconds=summary.duration,
        failures=summary.failures,
        details=summary.details,
        client_cpu=run.client_cpu,
    )


def ratios(runs: Sequence[Run], targets: Sequence[str]) -> list[Ratio]:
    """The first of the targets against each other one, in every load and figure."""
    found = {(run.load, run.round, run.target): run.figures for run in runs}
    results = []
    for load in _unique(run.load for run in runs):
        for other in targets[1:]:
            pairs = [
                (found[load, number, targets[0]], found[load, number, other])
                for number in _unique(run.round for run in runs if run.load == load)
            ]
            sound = [(a, b) for a, b in pairs if not (a.failures or b.failures)]
            for figure, (_, _, better) in _FIGURES.items():
                both = [(getattr(a, figure), getattr(b, figure)) for a, b in sound]
                values = tuple(better(a, b) for a, b in both if a and b)
                if values:
                    results.append(Ratio(load, other, figure, values, median(values)))
    return results


def figures_table(runs: Sequence[Run], load: str, targets: Sequence[str]) -> Table:
    """The medians of the rounds, a server a column."""
    table = Table("", title=f"load {load}: medians of the rounds", title_justify="left")
    columns = []
    for target in targets:
        table.add_column(target, justify="right")
        columns.append([r.figures for r in runs if (r.load, r.target) == (load, target)])
    for figure, (heading, factor, _) in _FIGURES.items():
        cells = [[getattr(each, figure) for each in column] for column in columns]
        table.add_row(heading, *(_median_cell(cell, factor) for cell in cells))
    failed = [sum(sum(each.failures.values()) for each in column) for column in columns]
    table.add_row("failed requests", *map(str, failed))
    return table


def ratio_table(found: Sequence[Ratio], load: str, first: str) -> Table:
    """How many times better the first server is than each other, with the range of the rounds."""
    table = Table("", title=f"load {load}: {first} is … times better than", title_justify="left")
    mine = [ratio for ratio in found if ratio.load == load]
    others = _unique(ratio.other for ratio in mine)
    for other in others:
        table.add_column(other, justify="right")
    by_place = {(ratio.figure, ratio.other): ratio for ratio in mine}
    for figure, (heading, _, _) in _FIGURES.items():
        cells = [by_place.get((figure, other)) for other in others]
        if any(cells):
            table.add_row(heading.split(",")[0], *map(_ratio_cell, cells))
    return table


def _median_cell(values: Sequence[float | None], factor: float) -> str:
    known = [value for value in values if value is not None]
    return f"{factor * median(known):.1f}" if known else "–"


def _ratio_cell(ratio: Ratio | None) -> str:
    if ratio is None:
        return "–"
    return f"{ratio.median:.2f} ({min(ratio.values):.2f}–{max(ratio.values):.2f})"


def _unique(values: Iterable[Each]) -> list[Each]:
    return list(dict.fromkeys(values))
