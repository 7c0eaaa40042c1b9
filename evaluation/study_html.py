"""A study's findings as one page that needs nothing else: text, tables and pictures.

Owns the page's order and markup; ``study_page.html`` has its style, ``study_figures`` draws. It
runs no script and asks nothing of any network.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib import resources

from chairlift.evaluation.study_figures import (
    Figure,
    distribution,
    first_tokens,
    gaps,
    interactivity,
    ladder,
    occupancy,
    slowdowns,
    timeline,
)
from chairlift.evaluation.study_measures import worst
from chairlift.evaluation.study_run import Run
from chairlift.evaluation.study_store import Result
from chairlift.evaluation.study_summary import (
    Findings,
    Loss,
    losses,
    pairs,
    rows,
    where_worse,
    within_runs,
    worse_groups,
)
from chairlift.evaluation.study_svg import COLOURS
from chairlift.evaluation.study_wording import (
    LOSS_HEAD,
    VERDICT_HEAD,
    WITHIN,
    about_plan,
    headline,
    loss_row,
    number,
    provenance,
    share,
    unit_of,
    verdict_row,
    why_lost,
    within_table,
)

__all__ = ["page"]

_WORST = 3
_SHOWN = 8
"""Rows of what is worse that are not folded away."""

_FIRST = frozenset({
    "output_tokens_per_s",
    "goodput",
    "in_time",
    "tokens_late",
    "first_token_p50_s",
    "first_token_p99_s",
    "inter_token_p99_s",
    "end_to_end_p99_s",
    "slowdown_p50",
    "slowdown_p99",
    "tokens_equal",
    "seats_use",
    "kv_use",
    "energy_per_token_j",
    "cost_per_good_request",
})  # fmt: skip
"""Measures that are seen without being asked for."""


def page(result: Result, findings: Findings) -> str:
    """The document."""
    template = (
        resources.files("chairlift.evaluation").joinpath("study_page.html").read_text("utf-8")
    )
    title = f"{result.plan.name}: {headline(findings.judgement)}"
    head, rest = template.replace("{{title}}", escape(title)).split("{{body}}")
    return head + "\n".join(_body(result, findings)) + rest


def _body(result: Result, findings: Findings) -> Iterator[str]:
    plan, judgement = result.plan, findings.judgement
    yield f"<header><h1>{escape(plan.decision)}</h1>"
    yield f'<p class="soft">study {escape(plan.name)}</p></header>'
    yield f'<p class="verdict {judgement.state}">{escape(headline(judgement))}</p>'
    for doubt in result.doubts:
        yield f'<p class="doubt">Exploratory: {escape(doubt)}</p>'
    yield _card("The question", _facts(about_plan(plan)))
    yield "<h2>Thresholds</h2>"
    yield _card("", _thresholds(findings), *_groups(findings))
    yield from _not_helping(result, findings)
    for workload in plan.workloads:
        yield from _workload(result, findings, workload)
    yield "<h2>Where it comes from</h2>"
    again = (
        "<p>Every figure is drawn from the runs in this folder by "
        f"<code>{_command(result)}</code>; <code>chairlift evaluate verify</code> computes them "
        "again.</p>"
    )
    yield _card("", _facts(provenance(result)), again)


def _thresholds(findings: Findings) -> str:
    lines = []
    for verdict in findings.judgement.verdicts:
        name, *cells = verdict_row(verdict)
        body = "".join(
            f'<td data-name="{head}"{_class(verdict.state) if head == "verdict" else ""}>'
            f"{escape(cell)}</td>"
            for head, cell in zip(VERDICT_HEAD[1:], cells, strict=True)
        )
        lines.append(f"<tr><th>{escape(name)}</th>{body}</tr>")
    head = "".join(f"<th>{each}</th>" for each in VERDICT_HEAD)
    return (
        f'<div class="scroll"><table class="stack"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _groups(findings: Findings) -> Iterator[str]:
    for verdict in findings.judgement.verdicts:
        by = verdict.threshold.by
        if by is not None:
            body = [
                (g.name, number(g.estimate), g.state.replace("_", " "), g.reason)
                for g in verdict.groups
            ]
            table = _table((by, verdict.measure, "verdict", "why"), body, "")
            name = escape(verdict.threshold.name)
            yield f"<details><summary>{name}, by {by}</summary>{table}</details>"


def _not_helping(result: Result, findings: Findings) -> Iterator[str]:
    plan = result.plan
    yield "<h2>Where it does not help</h2>"
    worse = where_worse(plan, findings.counting)
    groups = worse_groups(plan, findings.counting_runs)
    yield _card(
        "",
        "<p>Measures in which an arm is worse than what it is compared with, by more than 2%: "
        "medians over rounds, the worst first.</p>",
        _table(LOSS_HEAD, map(loss_row, worse[:_SHOWN]), "") if worse else "<p>None.</p>",
        _folded(f"{len(worse) - _SHOWN} more", worse[_SHOWN:]),
        _folded(f"{len(groups)} of groups of requests", groups),
    )
    yield "<h2>What did not complete</h2>"
    body = [
        (each.workload, each.arm, f"{each.completed}/{each.offered}", why_lost(each))
        for each in losses(plan, result.runs)
    ]
    void = [
        f"void: round {each.round + 1}, {each.workload}, {each.arm}: {each.reason}"
        for each in findings.judgement.void_runs
    ]
    table = _table(("workload", "arm", "completed/offered", "else"), body, "")
    yield _card("", table, _listed(void))


def _folded(title: str, found: Sequence[Loss]) -> str:
    if not found:
        return ""
    table = _table(LOSS_HEAD, map(loss_row, found), "")
    return f"<details><summary>{title}</summary>{table}</details>"


def _workload(result: Result, findings: Findings, workload: str) -> Iterator[str]:
    plan = result.plan
    void = {(each.workload, each.arm, each.round) for each in findings.judgement.void_runs}
    runs = {
        arm: [
            run
            for run in result.runs
            if (run.workload, run.arm) == (workload, arm) and (workload, arm, run.round) not in void
        ]
        for arm in plan.arms
    }
    yield f"<h2>{escape(workload)}</h2>"
    yield f"<p>{_key(plan.arms)}</p>"
    yield '<div class="grid">'
    for figure in _figures(result, runs):
        yield _figure(figure, _command(result))
    yield "</div>"
    yield _card("Measures", _measures(result, findings, workload))
    yield _card("Worst cases", _worst(runs))


def _figures(result: Result, runs: Mapping[str, Sequence[Run]]) -> Iterator[Figure]:
    targets = result.plan.targets[0]
    yield distribution(runs, "Time to first token", first_tokens, targets.first_token_s)
    yield distribution(runs, "Time from token to token", gaps, targets.per_token_s)
    yield interactivity(runs)
    yield from _seats(result, runs)
    by_tenant = slowdowns(runs)
    if by_tenant is not None:
        yield by_tenant
    first = min((run.round for of_it in runs.values() for run in of_it), default=None)
    course = {arm: run for arm, of_it in runs.items() for run in of_it if run.round == first}
    if course:
        yield timeline(course)
        rungs = ladder(course)
        if rungs is not None:
            yield rungs


def _seats(result: Result, runs: Mapping[str, Sequence[Run]]) -> Iterator[Figure]:
    """Of the first two arms that are compared, in the first round that both have."""
    arms = next(iter(pairs(result.plan)), tuple(result.plan.arms)[:2])
    told = [{run.round: run for run in runs[arm] if run.rides} for arm in arms]
    rounds = sorted(set.intersection(*map(set, told)))
    if rounds:
        shown = [of_it[rounds[0]] for of_it in told]
        until_s = max(ride.end_s for run in shown for ride in run.rides)
        for run in shown:
            yield occupancy(run, until_s)


def _command(result: Result) -> str:
    return escape(f"chairlift evaluate report {shlex.quote(result.folder.name)}")


def _figure(figure: Figure, command: str) -> str:
    return (
        f'<figure class="card"><h3>{escape(figure.title)}</h3>'
        f"<figcaption>{escape(figure.caption)}</figcaption>{figure.svg}"
        f"<figcaption><code>{command}</code></figcaption></figure>"
    )


def _measures(result: Result, findings: Findings, workload: str) -> str:
    plan = result.plan
    done = {each.arm: each for each in losses(plan, result.runs) if each.workload == workload}
    shares = [
        share(found.completed / found.offered) if (found := done.get(arm)) else "–"
        for arm in plan.arms
    ]
    everything = {
        row.measure: (f"{row.measure}{unit_of(row.unit)}", *map(number, row.by_arm.values()))
        for row in rows(plan, findings.counting)
        if row.workload == workload
    }
    runs = [run for run in findings.counting_runs if run.workload == workload]
    within = within_runs(plan, runs)
    first = [cells for name, cells in everything.items() if name.partition("[")[0] in _FIRST]
    head = ("measure", *plan.arms)
    return (
        '<p class="soft">Medians over rounds; latencies are of completed requests.</p>'
        + _table(head, [("completed/offered", *shares), *first], "numbers")
        + "<details><summary>all measures</summary>"
        + _table(head, everything.values(), "numbers")
        + "</details>"
        + f"<details><summary>{WITHIN}</summary>"
        + _table(head, within_table(within, list(plan.arms)), "numbers")
        + "</details>"
    )


def _worst(runs: Mapping[str, Sequence[Run]]) -> str:
    told = []
    for arm, of_it in runs.items():
        for each in worst(of_it[-1], _WORST) if of_it else ():
            name = f"{arm}, round {of_it[-1].round + 1}, request {each.outcome.number}"
            told.append(f"{name} of {each.outcome.tenant}: {each.story}")
    return _listed(told)


def _key(arms: Iterable[str]) -> str:
    return "".join(
        f'<span class="key"><svg viewBox="0 0 12 12"><circle class="c{colour % COLOURS}" cx="6" '
        f'cy="6" r="5"/></svg>{escape(arm)}</span>'
        for colour, arm in enumerate(arms)
    )


def _card(title: str, *parts: str) -> str:
    head = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<section class="card">{head}{"".join(parts)}</section>'


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    lines = (f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts)
    return f'<table class="facts"><tbody>{"".join(lines)}</tbody></table>'


def _table(head: Sequence[str], body: Iterable[Sequence[str]], class_: str) -> str:
    top = "".join(f"<th>{escape(each)}</th>" for each in head)
    lines = (
        f"<tr><th>{escape(name)}</th>{''.join(f'<td>{escape(each)}</td>' for each in cells)}</tr>"
        for name, *cells in body
    )
    return (
        f'<div class="scroll"><table class="{class_}"><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _listed(lines: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _class(state: str) -> str:
    return f' class="{state}"'
