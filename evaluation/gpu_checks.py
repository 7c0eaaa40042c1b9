"""Whether what is computed here is right: the tests of the kernels, and the report on exactness.

Owns how both are run within a time; what they check is theirs.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from chairlift.evaluation.exactness import Report, study
from chairlift.evaluation.gpu_clock import Deadline
from chairlift.evaluation.gpu_findings import Section
from chairlift.evaluation.gpu_models import RandomModel, Variant
from chairlift.workers.sequence import Runner, StepPlan, StepResult

__all__ = ["check_exactness", "check_kernels"]

_COUNTS = re.compile(r"(\d+) (passed|failed|skipped|deselected|errors?|xfailed)")
_NO_TESTS = 5
_WORST = 10
_RUNS = 10
_BLOCKS, _BLOCK_SIZE = 640, 4  # those of the study's schedules


def check_kernels(root: Path, selected: Sequence[str], deadline: Deadline) -> Section:
    """Run tests in a process of their own.

    Args:
        root: of the repository.
        selected: pytest's arguments.
        deadline: when the process is ended.
    """
    section = Section("kernel checks")
    if importlib.util.find_spec("pytest") is None:
        section.notes.append("left out: pytest is not installed")
        return section
    if not (root / "tests").is_dir():
        section.notes.append(f"left out: there are no tests in {root}")
        return section
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *selected]
    try:
        done = subprocess.run(
            command,
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=max(1.0, deadline.left),
            check=False,
        )
    except subprocess.TimeoutExpired as expired:
        _count(section, selected, expired.stdout or b"", None)
    else:
        _count(section, selected, done.stdout, done.returncode)
    return section


def _count(section: Section, selected: Sequence[str], printed: bytes, status: int | None) -> None:
    """What pytest said; ``status`` is None when it was ended."""
    lines = printed.decode(errors="replace").strip().splitlines() or [""]
    counts = {kind: int(number) for number, kind in _COUNTS.findall(lines[-1])}
    section.add({"tests": " ".join(selected)}, counts)
    if status is None and not counts:
        section.notes.append(f"ended when the time was up, after: {lines[-1]}")
    elif status == _NO_TESTS:
        section.notes.append("no test was selected")
    elif status or counts.keys() & {"failed", "error", "errors"}:
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        section.notes += failed[:_WORST]
        section.fault = lines[-1]
    elif not counts.get("passed"):
        section.notes.append("no test ran")


def check_exactness(model: RandomModel, variants: Sequence[Variant], deadline: Deadline) -> Section:
    """Random schedules of a small model, alone and in company, for as long as there is time."""
    section = Section("exactness")
    for number, variant in enumerate(variants):
        within = deadline.within(deadline.left / (len(variants) - number))
        runner = model.open_runner(variant, _BLOCKS, block_size=_BLOCK_SIZE)
        found = _study(_Timely(runner, within), model.spec.vocab_size)
        if not found.runs:
            section.notes.append(f"{variant}: left out, the time was up")
            continue
        section.add(
            {"exact": variant.exact, "graphs": variant.graphs, "promised": runner.exact},
            {"schedules": found.runs, "preemptions": found.preemptions},
            {"tokens": found.tokens, "differing tokens": found.differing_tokens},
            {"logprobs": found.logprobs, "differing logprobs": found.differing_logprobs},
        )
        if runner.exact and not found.exact:
            section.notes += found.first_differences
            section.fault = f"{variant}: not exact"
    return section


class _Stopped(BaseException):
    """Ends a study; not an ``Exception``, for an engine goes on after those."""


class _Timely:
    """A runner until a deadline, or its first failure."""

    def __init__(self, runner: Runner, deadline: Deadline) -> None:
        self._runner = runner
        self._deadline = deadline

    def advance(self, plan: StepPlan) -> StepResult:
        if self._deadline.left <= 0:
            raise _Stopped
        try:
            return self._runner.advance(plan)
        except Exception as error:
            raise _Stopped from error


def _study(runner: Runner, vocab_size: int) -> Report:
    """As many studies, each of other requests, as there is time for; whole ones count.

    Raises:
        RuntimeError: a step failed.
    """
    total, seed = Report(), 0
    while True:
        try:
            found = study(runner, vocab_size, _RUNS, seed, lambda: None)
        except _Stopped as stopped:
            if stopped.__cause__ is not None:
                raise RuntimeError(f"a step failed: {stopped.__cause__}") from stopped.__cause__
            return total
        _add(total, found)
        seed += 1


def _add(total: Report, report: Report) -> None:
    total.runs += report.runs
    total.tokens += report.tokens
    total.logprobs += report.logprobs
    total.preemptions += report.preemptions
    total.differing_tokens += report.differing_tokens
    total.differing_logprobs += report.differing_logprobs
    total.first_differences += report.first_differences
