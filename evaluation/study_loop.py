"""Runs a study, round after round, into its folder: arms forwards, then backwards, and so on.

Owns the order of the runs, which are left, and the progress that is shown. Loads what computes only
when something is to be run.
"""

from __future__ import annotations

import sys
import time
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chairlift.evaluation.study_plan import Plan
from chairlift.evaluation.study_run import Run
from chairlift.evaluation.study_store import ResultFolder

__all__ = ["Place", "places", "run_rounds"]

Place = tuple[int, str, str]
"""Round, workload and arm: a study has one run of each."""


def places(plan: Plan, rounds: int) -> list[Place]:
    """All runs in their order, which turns round in odd rounds: A B, B A, A B, and so on."""
    forwards = [(workload, arm) for workload in plan.workloads for arm in plan.arms]
    return [
        (number, workload, arm)
        for number in range(rounds)
        for workload, arm in (forwards[::-1] if number % 2 else forwards)
    ]


def run_rounds(store: ResultFolder, traces: Path | None) -> None:
    """Make every run that is not in the folder yet, until the plan says to stop.

    Raises:
        StartupError: the target cannot be had, or a load cannot be drawn.
    """
    from chairlift.evaluation.study_targets import open_target
    from chairlift.evaluation.study_work import draw

    result = store.read()
    plan = result.plan
    done = {(run.round, run.workload, run.arm) for run in result.runs}
    everything = places(plan, result.entry.rounds)
    left = [place for place in everything if place not in done]
    if not left:
        return
    spent, begin = sum(run.seconds for run in result.runs), time.monotonic()
    with open_target(plan) as target, _Shown(len(everything), len(done)) as shown:
        for (number, workload), of_it in groupby(left, lambda place: place[:2]):
            # Only a whole round more or less: a round is the unit of every test.
            fresh = not any(place[0] == number for place in done)
            wall_s = plan.stop.wall_s
            if fresh and wall_s is not None and spent + time.monotonic() - begin > wall_s:
                shown.say(f"stopped before round {number + 1}: the plan's time is over")
                return
            asked = draw(plan, workload, number, target.vocab_size, traces)
            for place in of_it:
                run = target.run(place[2], workload, number, len(done), asked)
                store.add(run)
                done.add(place)
                shown.tell(run)


class _Shown:
    """Progress with the time that is left on a terminal, else a line for each run."""

    def __init__(self, total: int, done: int) -> None:
        console = Console(stderr=True)
        self._lively = console.is_terminal
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not self._lively,
        )
        self._task = self._progress.add_task("runs", total=total, completed=done)
        self._total, self._before, self._done = total, done, done
        self._begin = time.monotonic()

    def __enter__(self) -> _Shown:
        self._progress.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.__exit__(None, None, None)

    def tell(self, run: Run) -> None:
        self._done += 1
        name = f"round {run.round + 1}, {run.workload}, {run.arm}"
        self._progress.update(self._task, advance=1, description=name)
        each = (time.monotonic() - self._begin) / (self._done - self._before)
        left = each * (self._total - self._done)
        self.say(f"{self._done}/{self._total} {name}: {run.seconds:.1f} s; {left:.0f} s left")

    def say(self, text: str) -> None:
        if not self._lively:
            print(text, file=sys.stderr, flush=True)
