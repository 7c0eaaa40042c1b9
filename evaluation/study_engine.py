"""Runs of a study on a bare engine: the real model in this process, in real time.

Owns how a load is played against scheduler, intake and runner as they serve requests, and what is
noted meanwhile. The load is open: requests come at their times, whatever the engine does. A bare
engine has no tenants: what waits stands in one line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median

from chairlift.cluster.errors import ConfigError
from chairlift.cluster.machine import read_cores
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.protocol import Controls, ReplicaInfo
from chairlift.evaluation.lengths import prompt_ids
from chairlift.evaluation.study_arm import (
    DELAY_S,
    SLOWER,
    Lone,
    Sizes,
    arm_of,
    late_controls,
    longest,
    sizes_of,
)
from chairlift.evaluation.study_energy import EnergyMeter
from chairlift.evaluation.study_feed import Feed
from chairlift.evaluation.study_others import OthersMeter
from chairlift.evaluation.study_plan import Arm, EngineTarget, Plan, Planted
from chairlift.evaluation.study_run import Outcome, Ride, Run, Use
from chairlift.evaluation.study_use import Meter, use_of
from chairlift.evaluation.study_work import Asked
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.engine import Engine, StepOutput
from chairlift.workers.intake import Intake
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Runner, StepPlan, StepResult

__all__ = ["EngineRuns", "Model", "Played", "Time", "measure_lone", "open_engine", "play_engine"]

_LONE_PROMPT, _LONE_OUTPUT, _LONE_TIMES = 128, 24, 3
_ALERT_S, _PIECE_S = 0.05, 0.0005


@dataclass(frozen=True, slots=True)
class Time:
    """Monotonic seconds, and how to wait for some."""

    clock: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Model:
    """What computes, and what a request takes that is alone with it."""

    runner: Runner
    vocab_size: int
    lone: Lone = field(default_factory=Lone)
    at: Time = field(default_factory=Time)


@dataclass(frozen=True, slots=True)
class Played:
    """What one load on one engine came to; times are from its start."""

    outcomes: tuple[Outcome, ...]
    use: Use
    rides: tuple[Ride, ...]
    seconds: float


class EngineRuns:
    """Runs on one runner, which all arms share; see ``study_targets``."""

    def __init__(self, plan: Plan, model: Model) -> None:
        self.vocab_size = model.vocab_size
        self._plan = plan
        self._model = model

    def run(
        self, arm_name: str, workload_name: str, round: int, order: int, asked: Sequence[Asked]
    ) -> Run:
        """One arm on one workload once."""
        arm, began_at = arm_of(self._plan, arm_name), time.time()
        played = play_engine(asked, arm, sizes_of(self._plan, arm), self._model)
        return Run(
            workload=workload_name,
            arm=arm_name,
            round=round,
            order=order,
            began_at=began_at,
            seconds=played.seconds,
            replicas=1,
            outcomes=played.outcomes,
            use=played.use,
            rides=played.rides,
        )


@contextmanager
def open_engine(plan: Plan, target: EngineTarget) -> Iterator[EngineRuns]:
    """Load the model once, warm it up, and measure what a request takes alone.

    Raises:
        ConfigError: an arm asks for what a bare engine has not, or a workload for more than the
            model's context.
        StartupError: the model cannot be used.
    """
    spec = read_spec(resolve_model(target.model))
    if longest(plan) > spec.context_length:
        raise ConfigError(
            f"limits: a request of {longest(plan)} tokens is longer than the model's "
            f"{spec.context_length}"
        )
    for name, arm in plan.arms.items():
        if arm.planted is Planted.DOUBLE_WEIGHT:
            raise ConfigError(f"arm {name}: a bare engine has no tenants to give weight to")
    # Torch is imported here, so that a plan is checked without waiting.
    from chairlift.workers.model_loading import Compute, make_runner

    threads = target.threads or max(1, int(read_cores().usable))
    runner = make_runner(
        spec,
        Compute(math=target.math, threads=threads),
        num_blocks=max(sizes_of(plan, arm).blocks for arm in plan.arms.values()),
        block_size=plan.block_size,
    )
    runner.warm_up(lambda _fraction: None)
    model = Model(runner, spec.vocab_size)
    lone = measure_lone(model, sizes_of(plan, Arm()), longest(plan))
    yield EngineRuns(plan, replace(model, lone=lone))


def measure_lone(model: Model, sizes: Sizes, most: int) -> Lone:
    """Requests of at most ``most`` tokens, one after the other: the prompt's time, and the steps'.

    The first one is left out, for it finds nothing warm.
    """
    ids = prompt_ids(model.vocab_size)
    most = min(most, sizes.blocks * sizes.block_size)
    output = max(2, min(_LONE_OUTPUT, most - 1))
    prompt = max(1, min(_LONE_PROMPT, most - output))
    steps, prompts = [], []
    for turn in range(_LONE_TIMES + 1):
        tokens = tuple(ids[(turn * prompt + i) % len(ids)] for i in range(prompt))
        asked = Asked(0, "", 0.0, tokens, output)
        played = play_engine((asked,), Arm(), sizes, model)
        times = played.outcomes[0].tokens_s
        if len(times) < output:
            raise ConfigError("a request alone on the engine failed")
        if turn:
            steps.append((times[-1] - times[0]) / (output - 1))
            prompts.append(times[0])
    step_s = median(steps)
    return Lone(max(0.0, median(prompts) - step_s) / prompt, step_s)


def play_engine(asked: Sequence[Asked], arm: Arm, sizes: Sizes, model: Model) -> Played:
    """Send all of it and follow it to its end, on an engine of its own."""
    at = model.at
    intake = Intake(_info(sizes, len(asked), model))
    scheduler = _scheduler(arm, sizes)
    slow = arm.planted is Planted.SLOW_GENERATOR
    energy, others = EnergyMeter(), OthersMeter()
    feed = Feed(asked, intake, at.clock, DELAY_S if slow else 0.0)
    watch = _Watch(feed, scheduler, sizes, model, intake, arm.planted)
    engine = Engine(scheduler, watch, intake, watch.take, at.clock)
    feed.deliver()
    while feed.unfinished:
        if engine.step():
            feed.back()
        elif feed.unfinished:
            _wait(feed, at)
            feed.deliver()
    outcomes = feed.outcomes(model.lone)
    first_s = min((each.intended_s for each in outcomes), default=0.0)
    seconds = max((each.ended_s for each in outcomes), default=0.0) - first_s
    meter = watch.meter
    meter.look(feed.now, (), 0.0)
    use = use_of(
        (meter,),
        max(seconds, 1e-9),
        preemptions=engine.load.preemptions,
        recomputed=engine.load.tokens_recomputed,
        energy_j=energy.joules(),
        others=others.share(),
    )
    return Played(outcomes, use, tuple(meter.rides), seconds)


def _wait(feed: Feed, at: Time) -> None:
    """Until something is to be done.

    A sleep may end tens of milliseconds late where the processor had gone to rest, so the last
    stretch is slept in pieces that do not let it.
    """
    while (left_s := feed.next_s - feed.now) > 0:
        at.sleep(left_s - _ALERT_S if left_s > 2 * _ALERT_S else min(left_s, _PIECE_S))


class _Watch:
    """Stands between engine and runner, and takes what the engine tells.

    Lets requests in that fell due during a forward pass, and notes who sits and what is used.
    """

    def __init__(
        self,
        feed: Feed,
        scheduler: Scheduler,
        sizes: Sizes,
        model: Model,
        intake: Intake,
        planted: Planted | None,
    ) -> None:
        self.meter = Meter(sizes.seats)
        self._feed = feed
        self._scheduler = scheduler
        self._sizes = sizes
        self._runner = model.runner
        self._time = model.at
        self._intake = intake
        self._planted = planted

    def advance(self, plan: StepPlan) -> StepResult:
        began = self._time.clock()
        result = self._runner.advance(plan)
        if self._planted is Planted.SLOWER_STEP:
            self._time.sleep(SLOWER * (self._time.clock() - began))
        seconds = self._time.clock() - began
        self.meter.stepped(plan.num_tokens / self._sizes.token_budget, seconds)
        if self._planted is Planted.REFILL_LATE:
            running, controls = len(self._scheduler.running), self._scheduler.controls
            self._intake.set_controls(late_controls(controls, self._sizes.seats, plan, running))
        self._feed.back()
        return result

    def take(self, output: StepOutput) -> None:
        self._feed.take(output)
        riders = [int(each.request_id) for each in self._scheduler.running]
        self.meter.look(self._feed.now, riders, output.load.blocks_used / self._sizes.blocks)


def _scheduler(arm: Arm, sizes: Sizes) -> Scheduler:
    controls = Controls(
        batching=arm.batching,
        token_budget=sizes.token_budget,
        max_sequences=sizes.seats,
        fair=False,
        reserve=arm.reserve,
    )
    return Scheduler(BlockPool(sizes.blocks, sizes.block_size), controls, ())


def _info(sizes: Sizes, requests: int, model: Model) -> ReplicaInfo:
    return ReplicaInfo(
        replica_id="study",
        model="study",
        vocab_size=model.vocab_size,
        max_sequence_tokens=sizes.blocks * sizes.block_size,
        max_sequences=sizes.seats,
        max_waiting=requests,
        block_size=sizes.block_size,
        blocks_total=sizes.blocks,
    )
