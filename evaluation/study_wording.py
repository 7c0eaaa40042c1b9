"""A study's findings in words: what Markdown, the HTML page and the terminal have in common.

Owns how numbers, thresholds and verdicts are put; knows no markup and computes no figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chairlift.evaluation.study_plan import Plan, SimulatedTarget, Threshold
from chairlift.evaluation.study_store import Result
from chairlift.evaluation.study_summary import Loss, Losses, Within
from chairlift.evaluation.study_verdict import Judgement, State, Verdict

__all__ = ["LOSS_HEAD", "STATES", "VERDICT_HEAD", "WITHIN", "about_plan", "headline", "loss_row",
           "number", "provenance", "share", "unit_of", "verdict_row", "why_lost",
           "within_table"]  # fmt: skip

STATES: Mapping[State, str] = {
    State.PASSED: "passed",
    State.FAILED: "FAILED",
    State.NOT_ENOUGH: "not enough evidence",
    State.VOID: "void",
}

VERDICT_HEAD = ("threshold", "wanted", "found", "interval", "p", "verdict", "why")

WITHIN = "How sure one run is: 95% intervals from blocks of its time, of each arm's first run."

LOSS_HEAD = ("workload", "measure", "of", "over", "value", "other", "ratio")

_HEADLINES: Mapping[State, str] = {
    State.PASSED: "The claim holds: every threshold passed",
    State.FAILED: "The claim does not hold",
    State.NOT_ENOUGH: "Not enough evidence",
    State.VOID: "Nothing is decided: runs are void",
}


def number(value: float | None) -> str:
    """Short, and "–" for none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def unit_of(unit: str) -> str:
    return f", {unit}" if unit else ""


def headline(judgement: Judgement) -> str:
    counts = [
        f"{sum(each.state is state for each in judgement.verdicts)} {STATES[state].lower()}"
        for state in State
        if any(each.state is state for each in judgement.verdicts)
    ]
    return f"{_HEADLINES[judgement.state]} ({', '.join(counts)})"


def verdict_row(verdict: Verdict) -> tuple[str, ...]:
    """Under ``VERDICT_HEAD``."""
    interval = verdict.interval
    return (
        verdict.threshold.name,
        _wanted(verdict.threshold, verdict.measure),
        number(verdict.estimate),
        "–" if interval is None else f"{number(interval[0])} to {number(interval[1])}",
        _p(verdict),
        STATES[verdict.state],
        "; ".join([verdict.reason, *verdict.cautions]),
    )


def _p(verdict: Verdict) -> str:
    """Of the side that it fell on."""
    p = verdict.p_against if verdict.state is State.FAILED else verdict.p
    return "–" if p is None else f"{p:.3f}"


def _wanted(threshold: Threshold, measure: str) -> str:
    of = threshold.arm if threshold.over is None else f"{threshold.arm} / {threshold.over}"
    relation, bound = ("≥", threshold.at_least) if threshold.at_least is not None else (
        "≤", threshold.at_most)  # fmt: skip
    whom = "" if threshold.by is None else f", each {threshold.by}"
    rounds = ", in every round" if threshold.every_round else ""
    return f"{threshold.workload}: {measure} of {of} {relation} {number(bound)}{whom}{rounds}"


def about_plan(plan: Plan) -> list[tuple[str, str]]:
    """What the evidence is for."""
    simulated = isinstance(plan.target, SimulatedTarget)
    return [
        ("decision", plan.decision),
        ("population", plan.population),
        ("if yes is wrong", plan.if_wrong.yes),
        ("if no is wrong", plan.if_wrong.no),
        ("alternative", plan.alternative),
        ("overturned by", "; ".join(plan.overturned_by)),
        (
            "target",
            "simulated time: real decisions, modelled steps" if simulated else plan.target.kind,
        ),
        *((f"workload {name}", _workload(plan, name)) for name in plan.workloads),
    ]


def _workload(plan: Plan, name: str) -> str:
    load = plan.workloads[name]
    source = getattr(load.source, "file", None) or getattr(load.source, "name", load.source.kind)
    scale = load.scale
    told = [
        f"{load.requests} requests a round from {source}",
        f"scaled: prompts × {number(scale.prompt)}, outputs × {number(scale.output)}, times × "
        f"{number(scale.time)}",
        f"at most {load.limits.prompt} tokens in and {load.limits.output} out",
    ]
    if load.together:
        told.append("all there at the start")
    if load.gives_up_after_s is not None:
        told.append(f"clients leave after {number(load.gives_up_after_s)} s without a token")
    return "; ".join(told)


def provenance(result: Result) -> list[tuple[str, str]]:
    """What went in, by name; all of it is in ``manifest.json``."""
    registration = result.entry.standing.registration
    opening = result.entry.opening
    told = [
        ("plan", f"{result.entry.standing.state}; SHA-256 {result.entry.standing.sha256}"),
        ("registered", "never" if registration is None else _registered(registration.at,
                                                                        registration.commit)),
        *(("changed", change) for change in result.entry.standing.changes),
    ]  # fmt: skip
    if opening is not None:
        told.append(("sealed sets", f"opened {opening.at}" if opening.first else
                     f"opened before, first {opening.at}"))  # fmt: skip
    for name in ("command", "traces", "model", "quality", "code", "machine", "kernels", "versions"):
        part = result.manifest.get(name)
        if isinstance(part, dict):
            part = ", ".join(
                f"{key} {value}" for key, value in part.items() if value not in (None, [])
            )
        if part:
            told.append((name, str(part)))
    return told


def _registered(at: str, commit: str | None) -> str:
    return at if commit is None else f"{at}, at commit {commit[:12]}"


def loss_row(loss: Loss) -> tuple[str, ...]:
    """Under ``LOSS_HEAD``."""
    values = (number(loss.value), number(loss.other), f"{loss.ratio:.2f}")
    of = f"{loss.measure}, {loss.group}" if loss.group else loss.measure
    return (loss.workload, of, loss.arm, loss.over, *values)


def within_table(within: Sequence[Within], arms: Sequence[str]) -> list[tuple[str, ...]]:
    """A row a measure, of one workload: its interval by arm."""
    by_place = {(each.measure, each.arm): each for each in within}
    return [
        (measure, *(_interval(by_place.get((measure, arm))) for arm in arms))
        for measure in dict.fromkeys(each.measure for each in within)
    ]


def _interval(within: Within | None) -> str:
    return "–" if within is None else f"{number(within.low)} to {number(within.high)}"


def why_lost(losses: Losses) -> str:
    return "; ".join(f"{count} {why}" for why, count in losses.by_why.items()) or "none"
