"""What the study of batching modes found: as JSON, and as tables for people.

Owns the figures over all rounds and how they are shown; runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from chairlift.cluster.protocol import Batching
from chairlift.evaluation.batching_comparison import BASELINES, Round, StudyPlan, compare
from chairlift.evaluation.percentiles import Percentiles, percentiles

__all__ = ["CLAIM", "print_report", "report"]

CLAIM = 2.0
"""Continuous batching gives at least so many times the output tokens per second of static."""


@dataclass(frozen=True, slots=True)
class _ModeFigures:
    """One mode over all rounds; ``tokens_per_s`` is the median, latencies are of all requests."""

    tokens_per_s: float
    steps: int
    occupancy: float
    preemptions: int
    first_token: Percentiles | None
    latency: Percentiles | None


def report(plan: StudyPlan, rounds: Sequence[Round]) -> dict[str, Any]:
    """Everything that the study found, ready for JSON; times in seconds.

    ``sound`` is False when a ratio is above what the lengths allow; ``same_tokens`` is the share
    of the requests whose tokens are the same in every mode.
    """
    comparisons = [compare(rounds, baseline, plan.seats) for baseline in BASELINES]
    same = [
        len(set(of_one_request)) == 1
        for each in rounds
        for of_one_request in zip(*(run.digests for run in each.runs.values()), strict=True)
    ]
    work = [one for each in rounds for one in each.work]
    return {
        "plan": asdict(plan),
        "mean_prompt": fmean(len(one.prompt) for one in work),
        "mean_output": fmean(one.output for one in work),
        "modes": {mode: asdict(_figures(rounds, mode, plan.seats)) for mode in Batching},
        "comparisons": [
            asdict(each) | {"median_ratio": each.median_ratio, "above_ceiling": each.above_ceiling}
            for each in comparisons
        ],
        "claim": CLAIM,
        "claim_holds": comparisons[0].median_ratio >= CLAIM,
        "same_tokens": sum(same) / len(same),
        "sound": not any(each.above_ceiling for each in comparisons),
        "rounds": [
            [asdict(run) | {"tokens_per_s": run.output_tokens_per_s} for run in each.runs.values()]
            for each in rounds
        ],
    }


def print_report(fields: dict[str, Any], *, to_stderr: bool) -> None:
    """Show what ``report`` returned, with the ``model`` and the ``threads`` that it ran on."""
    console = Console(stderr=to_stderr, highlight=False, soft_wrap=True)
    plan = fields["plan"]
    arrival = "all at the start" if plan["rate"] is None else f"{plan['rate']:g} a second"
    console.print(
        f"{fields['model']} on {fields['threads']} threads, {plan['seats']} seats;"
        f" {plan['rounds']} rounds of {plan['requests']} requests, {arrival}\n"
        f"prompts {plan['prompt_lengths']} (mean {fields['mean_prompt']:.1f} tokens),"
        f" outputs {plan['output_lengths']} (mean {fields['mean_output']:.1f})"
    )
    console.print(_mode_table(fields["modes"]))
    for comparison in fields["comparisons"]:
        console.print(_comparison_line(comparison))
    console.print(f"claim, at least {CLAIM:g}×: {'holds' if fields['claim_holds'] else 'fails'}")
    console.print(f"requests with the same tokens in every mode: {fields['same_tokens']:.1%}")


def _figures(rounds: Sequence[Round], mode: Batching, seats: int) -> _ModeFigures:
    runs = [each.runs[mode] for each in rounds]
    steps = sum(run.steps for run in runs)
    return _ModeFigures(
        tokens_per_s=median(run.output_tokens_per_s for run in runs),
        steps=steps,
        occupancy=sum(run.occupied for run in runs) / (steps * seats),
        preemptions=sum(run.preemptions for run in runs),
        first_token=percentiles(seconds for run in runs for seconds in run.first_token),
        latency=percentiles(seconds for run in runs for seconds in run.latency),
    )


def _mode_table(modes: dict[str, dict[str, Any]]) -> Table:
    table = Table("")
    for mode in modes:
        table.add_column(mode, justify="right")
    columns = list(modes.values())
    table.add_row("output tokens/s", *(f"{each['tokens_per_s']:.1f}" for each in columns))
    table.add_row("steps", *(str(each["steps"]) for each in columns))
    table.add_row("seats occupied", *(f"{each['occupancy']:.0%}" for each in columns))
    for name, label in (("first_token", "first token"), ("latency", "end to end")):
        for rank in ("p50", "p95", "p99"):
            table.add_row(f"{label} {rank}, s", *(f"{each[name][rank]:.2f}" for each in columns))
    table.caption = "tokens/s: median of the rounds; latency: since arrival, of all requests"
    return table


def _comparison_line(comparison: dict[str, Any]) -> str:
    ratios = ", ".join(f"{ratio:.2f}" for ratio in comparison["ratios"])
    line = f"continuous / {comparison['baseline']}: {comparison['median_ratio']:.2f}× ({ratios})"
    if comparison["ceilings"] is not None:
        limits = ", ".join(f"{limit:.2f}" for limit in comparison["ceilings"])
        line += f"; the lengths allow {limits}"
    if comparison["above_ceiling"]:
        line += "; NOT SOUND: above what the lengths allow, so the baseline is broken"
    return line
