"""Runs targets, each in a child process, and says what came of it.

A child that dies is started again with another seed, so a target's time is used up in any case.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.board import Board, Counts
from fuzz.child import Limits, Plan

__all__ = ["Fault", "Result", "run", "table"]

MAX_DEATHS = 5
"""Of one target; after that it is not worth going on."""

START_S = 120.0
"""For a child's imports, beyond the time that it is to feed."""

LIMITS = Limits()

PROGRAM = """\
import sys
from fuzz.child import main
from {module} import find
main(find, sys.argv[1:])
"""

_DEATHS = {
    signal.SIGPROF: "used more than {cpu_s:g} s of CPU",
    signal.SIGALRM: "took more than {wall_s:g} s",
    signal.SIGKILL: "had to be killed",
}


@dataclass(frozen=True)
class Fault:
    """What went wrong, and the file that holds the input."""

    kind: str
    input: Path
    trace: str = ""


@dataclass
class Result:
    """Of one target."""

    name: str
    counts: Counts = field(default_factory=Counts)
    faults: list[Fault] = field(default_factory=list)


def run(
    name: str, plan: Plan, faults: Path, limits: Limits = LIMITS, module: str = "fuzz.targets"
) -> Result:
    """Feed one target.

    Args:
        name: of a target.
        plan: how long.
        faults: the folder for failing inputs.
        limits: of one input.
        module: has the function ``find``, which makes a target of its name.
    """
    result = Result(name)
    deadline = None if plan.seconds is None else time.monotonic() + plan.seconds
    for death in range(MAX_DEATHS):
        left = plan
        if deadline is not None:
            left = dataclasses.replace(plan, seconds=max(deadline - time.monotonic(), 0.0))
        if plan.examples is not None:
            left = dataclasses.replace(left, examples=plan.examples - result.counts.tried)
        left = dataclasses.replace(left, seed=plan.seed + death)
        with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
            died = _run_once(result, left, Path(scratch), limits, module)
            _keep(result, died, Path(scratch), faults)
        spent = deadline is not None and time.monotonic() >= deadline
        full = plan.examples is not None and result.counts.tried >= plan.examples
        if died is None or spent or full:
            break
    return result


def _run_once(result: Result, plan: Plan, scratch: Path, limits: Limits, module: str) -> str | None:
    """What the child died of, if it did."""
    Board(scratch / "board", create=True).close()
    values = {"plan": dataclasses.asdict(plan), "limits": dataclasses.asdict(limits)}
    program = PROGRAM.format(module=module)
    words = [sys.executable, "-c", program, result.name, str(scratch), json.dumps(values)]
    environment = os.environ | {"MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with (scratch / "stderr").open("wb") as stderr:
        child = subprocess.Popen(words, stdout=stderr, stderr=stderr, env=environment)
        try:
            code = child.wait(None if plan.seconds is None else plan.seconds + START_S)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
    if code == 0:
        return None
    if code > 0:
        said = (scratch / "stderr").read_text(errors="replace").strip()
        return f"the process ended with {code}: {said[-600:]}"
    death = _DEATHS.get(signal.Signals(-code), f"died of {signal.Signals(-code).name}")
    return death.format(**dataclasses.asdict(limits))


def _keep(result: Result, died: str | None, scratch: Path, faults: Path) -> None:
    """Counts, and the inputs of all faults, out of a child's folder."""
    board = Board(scratch / "board")
    result.counts.add(board.counts)
    known = {fault.kind for fault in result.faults}
    for about in sorted(scratch.glob("*.fault")):
        values = json.loads(about.read_text())
        if values["kind"] not in known:
            kept = _path(faults, result.name, about.stem)
            shutil.copy(about.with_suffix(".input"), kept)
            result.faults.append(Fault(values["kind"], kept, values["trace"]))
    if died is not None:
        data = board.current
        kept = _path(faults, result.name, hashlib.sha256(data).hexdigest()[:12])
        kept.write_bytes(data)
        result.counts.tried += 1
        result.faults.append(Fault(died, kept))
    board.close()


def _path(faults: Path, target: str, name: str) -> Path:
    faults.mkdir(parents=True, exist_ok=True)
    return faults / f"{target.replace(' ', '-')}-{name}.input"


def table(results: Iterable[Result]) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| parser | inputs | refused | accepted | slowest, CPU | growth | faults |"
    yield "|---|---|---|---|---|---|---|"
    for result in results:
        counts = result.counts
        yield (
            f"| {result.name} | {counts.tried:,} | {counts.refused:,} | {counts.accepted:,} "
            f"| {1000 * counts.slowest_s:,.0f} ms | {counts.growth / 1024**2:,.0f} MiB "
            f"| {len(result.faults)} |"
        )
