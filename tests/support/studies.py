"""A small study without a target: its plan, and runs of modelled seats."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from chairlift.evaluation.study_loop import places
from chairlift.evaluation.study_plan import Plan, load_plan, parse_plan
from chairlift.evaluation.study_provenance import make_manifest
from chairlift.evaluation.study_registry import standing
from chairlift.evaluation.study_run import Fate, Outcome, Ride, Run, Use
from chairlift.evaluation.study_store import Entry, ResultFolder
from chairlift.evaluation.study_summary import find

PLAN = """
name: small
decision: serve with continuous batching
population: short requests on one small machine
if_wrong: {yes: "users wait", no: "seats stay empty"}
alternative: static batching
overturned_by: [a ratio below the bound]
target: {kind: simulated}
workloads:
  burst:
    source: {kind: drawn, rate: 20, prompt: "constant:8", output: "uniform:2,40"}
    requests: 40
    limits: {prompt: 64, output: 64}
arms:
  static: {batching: static}
  continuous: {}
thresholds:
  - name: faster
    workload: burst
    measure: output_tokens_per_s
    arm: continuous
    over: static
    at_least: 1.2
  - name: fair
    workload: burst
    measure: slowdown_p95
    arm: continuous
    over: static
    at_most: 1.5
    by: tenant
targets: [{first_token_s: 1.0, per_token_s: 0.05}]
rounds: 6
seats: 4
"""
STEP_S = 0.02


def small_plan() -> Plan:
    return parse_plan(PLAN, "small")


def write_plan(folder: Path, text: str = PLAN) -> Path:
    file = folder / "small.yaml"
    file.write_text(text)
    return file


def small_run(arm: str, round_: int = 0, order: int = 0, requests: int = 40) -> Run:
    """Seats that take a token a step; the static arm fills them only when all are empty."""
    source = random.Random(round_)
    asked = [source.randint(2, 40) for _ in range(requests)]
    outcomes, rides = _static(asked) if arm == "static" else _continuous(asked)
    return Run(
        workload="burst",
        arm=arm,
        round=round_,
        order=order,
        began_at=1_700_000_000.25 + order,
        seconds=max(each.ended_s for each in outcomes),
        replicas=1,
        outcomes=tuple(sorted(outcomes, key=lambda each: each.number)),
        use=Use(steps=100, seats=0.5, kv=0.1 + 0.2, budget=0.25, preemptions=0, recomputed=0),
        rides=tuple(rides),
        moves=((0.5, "SMALLER_STEPS"),),
        simulated=True,
    )


def small_runs(plan: Plan, rounds: int) -> list[Run]:
    return [
        small_run(arm, number, order) for order, (number, _, arm) in enumerate(places(plan, rounds))
    ]


def finished_study(folder: Path, plan_file: Path) -> ResultFolder:
    """The folder of a study that was run and judged."""
    store, plan, stands = ResultFolder(folder), load_plan(plan_file), standing(plan_file)
    manifest = make_manifest(plan, stands.sha256, None, "chairlift evaluate run small.yaml")
    store.begin(
        plan_file.read_bytes(), Entry(stands, None, plan.rounds), {**manifest, "quality": {}}
    )
    for run in small_runs(plan, plan.rounds):
        store.add(run)
    store.judge(find(plan, store.read().runs).as_tree())
    return store


class SmallTarget:
    """Implements what ``study_targets.open_target`` gives; ``fails_at``: it is cut off there."""

    vocab_size = 100

    def __init__(self, fails_at: int | None = None) -> None:
        self.made: list[tuple[int, str]] = []
        self._fails_at = fails_at

    def run(self, arm_name: str, workload_name: str, round: int, order: int, asked: object) -> Run:
        if order == self._fails_at:
            raise KeyboardInterrupt
        self.made.append((round, arm_name))
        return small_run(arm_name, round, order)

    @contextmanager
    def open(self, plan: Plan) -> Iterator["SmallTarget"]:
        yield self


def _static(asked: Sequence[int]) -> tuple[list[Outcome], list[Ride]]:
    outcomes, rides, begin = [], [], 0.0
    for first in range(0, len(asked), 4):
        batch = list(enumerate(asked[first : first + 4], start=first))
        for seat, (number, output) in enumerate(batch):
            _ride(outcomes, rides, number, output, (seat, begin))
        begin += STEP_S * max(output for _, output in batch)
    return outcomes, rides


def _continuous(asked: Sequence[int]) -> tuple[list[Outcome], list[Ride]]:
    outcomes: list[Outcome] = []
    rides: list[Ride] = []
    free = [0.0] * 4
    for number, output in enumerate(asked):
        seat = min(range(4), key=free.__getitem__)
        _ride(outcomes, rides, number, output, (seat, free[seat]))
        free[seat] += STEP_S * output
    return outcomes, rides


def _ride(
    outcomes: list[Outcome],
    rides: list[Ride],
    number: int,
    output: int,
    place: tuple[int, float],
) -> None:
    seat, begin = place
    end = begin + STEP_S * output
    gave_up = number % 20 == 13
    outcomes.append(
        Outcome(
            number=number,
            tenant=f"tenant{number % 3}",
            prompt=8,
            asked=output,
            intended_s=0.0,
            sent_s=0.0,
            ended_s=begin if gave_up else end,
            tokens_s=() if gave_up else tuple(begin + STEP_S * (i + 1) for i in range(output)),
            fate=Fate.GAVE_UP if gave_up else Fate.COMPLETED,
            why="no first token" if gave_up else "",
            digest=None if gave_up else f"{number}",
            alone_s=STEP_S * output,
        )
    )
    if not gave_up:
        rides.append(Ride(number, seat, begin, end))
