"""Checks that whatever calls somebody has a runbook, and that runbooks name what there is.

PYTHONPATH=.:tests python -m checks.runbooks [ROOT]

Each alert, each signal of the Guard's policy and each rung of its ladder has a section with all
four parts; an alert's link leads to it, and its owner is that of the policy. Commands of the page
that are Chairlift's own exist, with their flags, and so do modules that it starts.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from chairlift.cluster.guard_policy import GuardPolicy, load_policy
from chairlift.cluster.guard_state import Rung, Signal
from chairlift.deployments.alerts import RUNBOOKS, alert_rules
from chairlift.deployments.cli import COMMANDS
from chairlift.evaluation.runbooks import PARTS, Runbook, read_runbooks
from checks.source import Violation

__all__ = ["check_commands", "check_rules", "check_runbooks", "check_rungs", "main"]

_CALL = re.compile(r"(?:^|[|;&(])\s*chairlift ([a-z]+)([^|;&\n]*)")
_MODULE = re.compile(r"python -m (chairlift(?:\.\w+)+)")
_FLAG = re.compile(r"(?<=\s)(--[a-z-]+)")
_CODE = re.compile(r"```sh\n(.*?)```|`([^`\n]+)`", re.DOTALL)


def check_runbooks(runbooks: Mapping[str, Runbook]) -> Iterator[Violation]:
    """Each has all parts, with something in them, and commands to look with."""
    for each in runbooks.values():
        for part in PARTS:
            if not each.parts.get(part):
                yield _violation(each.line, f"{each.title} has no {part}")
        if not any(command.shows for command in each.commands("First look")):
            yield _violation(each.line, f"{each.title}: no command of First look shows anything")


def check_rules(
    runbooks: Mapping[str, Runbook], rules: Sequence[Mapping[str, Any]], page: str = RUNBOOKS
) -> Iterator[Violation]:
    """Each rule links a runbook of its name and owner."""
    for rule in rules:
        name = rule["alert"]
        runbook = runbooks.get(name)
        if runbook is None:
            yield _violation(1, f"no runbook for the alert {name}")
            continue
        link = rule["annotations"].get("runbook_url")
        if link != f"{page}#{runbook.anchor}":
            yield _violation(runbook.line, f"{name} links {link}, not its runbook")
        if runbook.owner != rule["labels"]["owner"]:
            yield _violation(
                runbook.line,
                f"{name} is owned by {rule['labels']['owner']}, its runbook by {runbook.owner}",
            )


def check_rungs(runbooks: Mapping[str, Runbook], policy: GuardPolicy) -> Iterator[Violation]:
    """Each signal of the policy, and each rung but the one on which all is well."""
    for signal in policy.signals:
        title = _of_signal(signal)
        if title not in runbooks:
            yield _violation(1, f"no runbook for the signal {signal.value}: {title}")
    for rung in Rung:
        title = f"Rung {rung.value}: {rung.name.lower()}"
        if rung is not Rung.NORMAL and title not in runbooks:
            yield _violation(1, f"no runbook for a rung: {title}")


def check_commands(page: str) -> Iterator[Violation]:
    """Calls of Chairlift's own in blocks of commands and in code."""
    for number, code in _code(page):
        for command, rest in _CALL.findall(code):
            if command not in COMMANDS:
                yield _violation(number, f"there is no chairlift {command}")
                continue
            known = _flags(command)
            for flag in _FLAG.findall(rest):
                if flag not in known:
                    yield _violation(number, f"chairlift {command} has no {flag}")
        for module in _MODULE.findall(code):
            if importlib.util.find_spec(module) is None:
                yield _violation(number, f"there is no module {module}")


def _of_signal(signal: Signal) -> str:
    return "ChairliftSignal" + signal.value.title().replace("_", "")


def _code(page: str) -> Iterator[tuple[int, str]]:
    """Code of the page, line by line, with the line's number; continued lines are one."""
    for match in _CODE.finditer(page):
        first = page.count("\n", 0, match.start()) + (2 if match[1] else 1)
        joined = (match[1] or match[2]).replace("\\\n", "  ")
        for offset, line in enumerate(joined.splitlines()):
            yield first + offset, line


def _flags(command: str) -> set[str]:
    parser = argparse.ArgumentParser()
    importlib.import_module(f"chairlift.{COMMANDS[command][0]}").add_arguments(parser)
    return {flag for action in parser._actions for flag in action.option_strings}


def _violation(line: int, message: str) -> Violation:
    return Violation(RUNBOOKS, line, message)


def main(arguments: Sequence[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parents[2]
    page = (root / RUNBOOKS).read_text(encoding="utf-8")
    runbooks, policy = read_runbooks(page), load_policy(None)
    tree = yaml.safe_load(alert_rules(policy))
    rules = [rule for group in tree["groups"] for rule in group["rules"]]
    violations = [
        *check_runbooks(runbooks),
        *check_rules(runbooks, rules),
        *check_rungs(runbooks, policy),
        *check_commands(page),
    ]
    for violation in violations:
        print(violation)
    print(f"runbooks: {len(violations)} violations in {len(runbooks)}")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
