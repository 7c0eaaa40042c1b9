"""``chairlift doctor``: says what this machine can run, and what to do about the rest.

Owns flags and rendering; ``doctor_facts`` looks, ``doctor_checks`` judges.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from chairlift.cluster.config import ServiceConfig
from chairlift.deployments.doctor_checks import Finding, Verdict, inspect
from chairlift.deployments.doctor_facts import gather

__all__ = ["add_arguments", "render", "run"]

_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "bold red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``chairlift doctor``."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument(
        "--port",
        type=int,
        default=ServiceConfig().http.port,
        help="the port to look at (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print every finding; 1 when one of them keeps Chairlift from running, else 0."""
    findings = inspect(gather(arguments.port))
    if arguments.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        render(findings, Console(highlight=False))
    return int(any(finding.verdict is Verdict.PROBLEM for finding in findings))


def render(findings: Sequence[Finding], console: Console) -> None:
    """A line for each finding, and what to do below those that need it."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column()
    table.add_column(overflow="fold")
    for finding in findings:
        style = _STYLES[finding.verdict]
        text = escape(finding.detail)
        if finding.advice:
            text += f"\n[{style}]{escape(finding.advice)}[/]"
        table.add_row(f"[{style}]{finding.verdict}[/]", finding.subject, text)
    console.print(table)
