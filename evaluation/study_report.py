"""A study's reports: Markdown and JSON here, and the page of ``study_html``.

Owns the order of what is told; figures come from ``study_summary``, words from ``study_wording``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from chairlift.evaluation.study_files import to_tree, write_tree, write_whole
from chairlift.evaluation.study_html import page
from chairlift.evaluation.study_measures import worst
from chairlift.evaluation.study_store import Result
from chairlift.evaluation.study_summary import (
    Findings,
    losses,
    rows,
    where_worse,
    within_runs,
    worse_groups,
)
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

__all__ = ["markdown", "tree", "write_reports"]

_WORST = 3
"""Requests told one by one, of each arm on each workload."""


def write_reports(result: Result, findings: Findings) -> None:
    """``report.md``, ``report.json`` and ``report.html``, in the result's folder."""
    write_whole(result.folder / "report.md", markdown(result, findings).encode())
    write_whole(result.folder / "report.html", page(result, findings).encode())
    write_tree(result.folder / "report.json", tree(result, findings))


def tree(result: Result, findings: Findings) -> dict[str, object]:
    """Everything that the other two say, for programs."""
    plan = result.plan
    return {
        "headline": headline(findings.judgement),
        "exploratory": list(result.doubts),
        **to_tree({"plan": plan, "entry": result.entry, "manifest": result.manifest}),
        **findings.as_tree(),
        **to_tree({
            "rows": rows(plan, findings.counting),
            "within_runs": within_runs(plan, findings.counting_runs),
            "worse": where_worse(plan, findings.counting),
            "worse_groups": worse_groups(plan, findings.counting_runs),
                "losses": losses(plan, result.runs),
        }),
    }  # fmt: skip


def markdown(result: Result, findings: Findings) -> str:
    return "\n".join(_markdown(result, findings)) + "\n"


def _markdown(result: Result, findings: Findings) -> Iterator[str]:
    plan, judgement = result.plan, findings.judgement
    yield f"# {plan.name}: {headline(judgement)}\n"
    for doubt in result.doubts:
        yield f"**Exploratory**: {doubt}.\n"
    yield from _table(("", ""), about_plan(plan))
    yield "## Thresholds\n"
    yield from _table(VERDICT_HEAD, map(verdict_row, judgement.verdicts))
    yield from _groups(findings)
    yield "## Where it does not help\n"
    worse = where_worse(plan, findings.counting) + worse_groups(plan, findings.counting_runs)
    yield "Where an arm is worse than what it is compared with, by more than 2%:\n"
    yield from _table(LOSS_HEAD, map(loss_row, worse)) if worse else ("Nowhere.\n",)
    yield "## What did not complete\n"
    yield from _table(
        ("workload", "arm", "completed/offered", "else"),
        (
            (each.workload, each.arm, f"{each.completed}/{each.offered}", why_lost(each))
            for each in losses(plan, result.runs)
        ),
    )
    for void in judgement.void_runs:
        yield f"- void: round {void.round + 1}, {void.workload}, {void.arm}: {void.reason}"
    yield from _measures(result, findings)
    yield "## Worst cases\n"
    yield from _listed(list(_worst(result)))
    yield "## Provenance\n"
    yield from _table(("", ""), provenance(result))
    yield "Every figure: `chairlift evaluate report RESULT`, from the runs in this folder."


def _groups(findings: Findings) -> Iterator[str]:
    for verdict in findings.judgement.verdicts:
        if verdict.threshold.by is not None:
            yield f"{verdict.threshold.name}, by {verdict.threshold.by}:\n"
            yield from _table(
                (verdict.threshold.by, verdict.measure, "verdict", "why"),
                ((g.name, number(g.estimate), g.state, g.reason) for g in verdict.groups),
            )


def _measures(result: Result, findings: Findings) -> Iterator[str]:
    plan = result.plan
    everything = rows(plan, findings.counting)
    within = within_runs(plan, findings.counting_runs)
    for workload in plan.workloads:
        done = {each.arm: each for each in losses(plan, result.runs) if each.workload == workload}
        yield f"## {workload}\n"
        yield "Medians over rounds; latencies are of completed requests.\n"
        yield from _table(
            ("measure", *plan.arms),
            [
                (
                    "completed/offered",
                    *(share(d.completed / d.offered) if (d := done.get(arm)) else "–"
                      for arm in plan.arms),
                ),
                *(
                    (f"{row.measure}{unit_of(row.unit)}", *map(number, row.by_arm.values()))
                    for row in everything
                    if row.workload == workload
                ),
            ],
        )  # fmt: skip
        yield f"{WITHIN}\n"
        of_it = [each for each in within if each.workload == workload]
        yield from _table(("measure", *plan.arms), within_table(of_it, list(plan.arms)))


def _worst(result: Result) -> Iterator[str]:
    for workload in result.plan.workloads:
        for arm in result.plan.arms:
            runs = [run for run in result.runs if (run.workload, run.arm) == (workload, arm)]
            for each in worst(runs[-1], _WORST) if runs else ():
                name = f"request {each.outcome.number} of {each.outcome.tenant}"
                yield f"{workload}, {arm}, round {runs[-1].round + 1}, {name}: {each.story}"


def _listed(lines: Sequence[str]) -> Iterator[str]:
    yield from (f"- {line}" for line in lines)
    yield "" if lines else "Nothing.\n"


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> Iterator[str]:
    yield _line(head)
    yield _line(["---"] * len(head))
    for row in body:
        yield _line(row)
    yield ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
