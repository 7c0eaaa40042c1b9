"""``chairlift evaluate``: does it help, whom, and at whose cost; decided by a plan made beforehand.

Owns the flags, and the order in which a study's parts come together. A plan is registered, run,
judged and reported; a result can be verified, and compared with another.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.flags import count
from chairlift.evaluation.study_loop import run_rounds
from chairlift.evaluation.study_plan import load_plan
from chairlift.evaluation.study_provenance import make_manifest
from chairlift.evaluation.study_quality import quality_of
from chairlift.evaluation.study_registry import open_sealed, part_of, register, standing
from chairlift.evaluation.study_report import write_reports
from chairlift.evaluation.study_store import Entry, Result, ResultFolder
from chairlift.evaluation.study_summary import Findings, find
from chairlift.evaluation.study_verdict import check_measures
from chairlift.evaluation.study_verify import Found, changed_inputs, diff, verify
from chairlift.evaluation.study_wording import headline, verdict_row

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``chairlift evaluate``, and their flags."""
    parser.description = (
        "Run a study by its plan, and say whether its claim holds. Exit code: 0 every threshold "
        "passed, 1 one failed, 2 not enough evidence, or wrong use."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(
        name: str, does: Callable[[argparse.Namespace], int], summary: str
    ) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=summary, description=summary)
        made.set_defaults(does=does)
        return made

    _add_plan(action("register", _register, "fix a plan, before anything is measured"))
    study = action("run", _run, "run a plan's study, or go on with it, and judge it")
    _add_study(study)
    _add_traces(study)
    confirm = action("confirm", _confirm, "run the part on sealed sets, which a plan has once")
    _add_study(confirm)
    confirm.add_argument(
        "--sealed", type=Path, nargs="+", required=True, metavar="FILE",
        help="the sealed sets that the plan names",
    )  # fmt: skip
    _add_result(action("report", _report, "judge a result again, and write its reports"))
    checked = action("verify", _verify, "compute again what can be, and say what differs")
    _add_result(checked)
    _add_traces(checked)
    compared = action("diff", _diff, "which inputs of two results are not the same")
    compared.add_argument("before", type=Path, metavar="A")
    compared.add_argument("after", type=Path, metavar="B")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; returns the exit code."""
    return int(arguments.does(arguments))


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN", help="a YAML file")


def _add_result(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("result", type=Path, metavar="RESULT", help="a folder that `run` made")


def _add_traces(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--traces", type=Path, metavar="DIR", help="where recorded loads lie")


def _add_study(parser: argparse.ArgumentParser) -> None:
    _add_plan(parser)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="of the result; default: named as the plan is"
    )
    parser.add_argument(
        "--rounds", type=count, metavar="N",
        help="other than the plan's, which makes the result exploratory",
    )  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on where a study was cut off")


def _register(arguments: argparse.Namespace) -> int:
    check_measures(load_plan(arguments.plan))
    made = register(arguments.plan)
    print(f"registered {made.plan}: SHA-256 {made.sha256}, {made.at}")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    return _study(arguments, [])


def _confirm(arguments: argparse.Namespace) -> int:
    arguments.traces = arguments.sealed[0].parent
    return _study(arguments, arguments.sealed)


def _study(arguments: argparse.Namespace, sealed: list[Path]) -> int:
    """Run what is not there yet, then judge and report all of it."""
    plan = part_of(load_plan(arguments.plan), sealed=bool(sealed))
    check_measures(plan)
    store = ResultFolder(arguments.out or Path(plan.name))
    if store.begun and not arguments.resume:
        raise ConfigError(f"--out: {store.path} has a result; go on with it with --resume")
    if store.begun:
        _go_on(arguments, store)
    else:
        content = arguments.plan.read_bytes()
        stands = standing(arguments.plan)
        manifest = make_manifest(plan, stands.sha256, arguments.traces, _command())
        opening = open_sealed(arguments.plan, plan, sealed) if sealed else None
        entry = Entry(stands, opening, arguments.rounds or plan.rounds)
        store.begin(content, entry, {**manifest, "quality": quality_of(plan.target)})
    try:
        run_rounds(store, arguments.traces)
    except KeyboardInterrupt:
        print(f"cut off: whole runs are in {store.path}; go on with --resume", file=sys.stderr)
        raise
    return _finish(store)


def _go_on(arguments: argparse.Namespace, store: ResultFolder) -> None:
    """Raises ConfigError unless what is there is the same study."""
    found = store.read()
    if standing(arguments.plan).sha256 != found.entry.standing.sha256:
        raise ConfigError(f"--resume: {store.path} was begun with another plan")
    if (found.entry.opening is not None) != hasattr(arguments, "sealed"):
        raise ConfigError(f"--resume: {store.path} is of the plan's other part")
    here = make_manifest(found.plan, found.entry.standing.sha256, arguments.traces, "")
    told = changed_inputs(found.manifest, here)
    if told:
        shown = "; ".join(map(str, told[:3]))
        raise ConfigError(f"--resume: {store.path} was begun with other inputs: {shown}")
    store.go_on(arguments.rounds)


def _finish(store: ResultFolder) -> int:
    result = store.read()
    findings = find(result.plan, result.runs)
    store.judge(findings.as_tree())
    return _tell(result, findings)


def _report(arguments: argparse.Namespace) -> int:
    """The judgement in the folder stays as it was written; the reports are new."""
    result = ResultFolder(arguments.result).read()
    return _tell(result, find(result.plan, result.runs))


def _tell(result: Result, findings: Findings) -> int:
    write_reports(result, findings)
    for verdict in findings.judgement.verdicts:
        name, wanted, found, interval, p, state, why = verdict_row(verdict)
        print(f"{state}: {name}\n    wanted {wanted}")
        print(f"    found {found}, interval {interval}, p {p}; {why}")
    for doubt in result.doubts:
        print(f"exploratory: {doubt}")
    print(f"{headline(findings.judgement)}; see {result.folder / 'report.html'}")
    return findings.judgement.exit_code


def _verify(arguments: argparse.Namespace) -> int:
    checks = verify(arguments.result, arguments.traces)
    for check in checks:
        print(f"{check.found}: {check.name}" + (f": {check.detail}" if check.detail else ""))
    return 1 if any(check.found is Found.DIFFERS for check in checks) else 0


def _diff(arguments: argparse.Namespace) -> int:
    told = diff(arguments.before, arguments.after)
    for change in told:
        print(change)
    print(f"{len(told)} inputs are not the same" if told else "all inputs are the same")
    return 1 if told else 0


def _command() -> str:
    """As it was given, to be given again."""
    return shlex.join(["chairlift", *sys.argv[1:]])
