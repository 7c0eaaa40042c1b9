"""Runs of a study in simulated time: the real router, scheduler and block pool, modelled steps.

Owns how a plan becomes a world (``guard_world``) and what happened there becomes a run. A run
follows from plan and requests, to the last digit, but for the moment at which it was made.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from chairlift.cluster.config_sections import Deadlines
from chairlift.cluster.errors import ConfigError
from chairlift.cluster.guard_state import Mode
from chairlift.cluster.protocol import Request, SamplingParams
from chairlift.evaluation.guard_replica import Machine, Replica
from chairlift.evaluation.guard_router import Asked as Answered
from chairlift.evaluation.guard_traffic import Given
from chairlift.evaluation.guard_world import Course, World, WorldSettings
from chairlift.evaluation.study_arm import (
    DELAY_S,
    SLOWER,
    Sizes,
    arm_of,
    late_controls,
    longest,
    sizes_of,
)
from chairlift.evaluation.study_plan import Arm, Plan, Planted, SimulatedTarget
from chairlift.evaluation.study_run import Fate, Outcome, Run
from chairlift.evaluation.study_use import Meter, use_of
from chairlift.evaluation.study_work import Asked
from chairlift.router.metrics import Outcome as End

__all__ = ["SimulatedRuns", "open_simulated"]

_VOCAB_SIZE = 30_000

_FATES = {
    End.FINISHED: Fate.COMPLETED,
    End.CANCELLED: Fate.GAVE_UP,
    End.REJECTED: Fate.REFUSED,
    End.FAILED: Fate.FAILED,
}


class SimulatedRuns:
    """Runs in worlds of their own; see ``study_targets``."""

    def __init__(self, plan: Plan, target: SimulatedTarget) -> None:
        self.vocab_size = _VOCAB_SIZE
        self._plan = plan
        self._target = target

    def run(
        self, arm_name: str, workload_name: str, round: int, order: int, asked: Sequence[Asked]
    ) -> Run:
        """One arm on one workload once."""
        plan, arm, began_at = self._plan, arm_of(self._plan, arm_name), time.time()
        sizes = sizes_of(plan, arm)
        settings = self._settings(arm, sizes, asked, plan.seed * 1000 + round)
        picture = _Picture(settings, sizes, late=arm.planted is Planted.REFILL_LATE)
        world = World(settings, picture.look)
        picture.world = world
        for replica in world.replicas:
            if arm.planted is Planted.SLOWER_STEP:
                replica.slower = 1 + SLOWER
        course = world.run()
        outcomes = _outcomes(asked, course, settings.machine)
        seconds = _seconds(outcomes)
        return Run(
            workload=workload_name,
            arm=arm_name,
            round=round,
            order=order,
            began_at=began_at,
            seconds=seconds,
            replicas=settings.replicas,
            outcomes=outcomes,
            use=use_of(
                picture.closed(world.now),
                max(seconds, 1e-9),
                preemptions=sum(each.load.preemptions for each in world.replicas),
                recomputed=sum(each.load.tokens_recomputed for each in world.replicas),
            ),
            rides=tuple(ride for meter in picture.meters.values() for ride in meter.rides),
            moves=tuple(
                (course.at_s(move), move.after.name.lower())
                for move in course.moves
                if move.after is not move.before and not move.shadow
            ),
            simulated=True,
        )

    def _settings(self, arm: Arm, sizes: Sizes, asked: Sequence[Asked], seed: int) -> WorldSettings:
        plan, target = self._plan, self._target
        machine = Machine(
            seats=sizes.seats,
            token_budget=sizes.token_budget,
            blocks=sizes.blocks,
            block_size=sizes.block_size,
            base_s=target.base_s,
            per_token_s=target.per_token_s,
            per_position_s=target.per_position_s,
            noise=target.noise,
            prefix_cache=True,
        )
        return WorldSettings(
            traffic=(),
            duration_s=math.inf,
            seed=seed,
            machine=machine,
            replicas=target.replicas,
            fair=arm.fair,
            mode=Mode(arm.guard),
            first_token_s=plan.targets[0].first_token_s,
            per_token_s=plan.targets[0].per_token_s,
            given=tuple(_given(asked, arm.planted)),
            base=replace(machine.controls, batching=arm.batching, reserve=arm.reserve),
            patience_s=Deadlines().standard,
            context=longest(plan),
        )


@contextmanager
def open_simulated(plan: Plan, target: SimulatedTarget) -> Iterator[SimulatedRuns]:
    """There is nothing to load.

    Raises:
        ConfigError: a fault is planted that the Guard's orders would undo.
    """
    for name, arm in plan.arms.items():
        if arm.planted is Planted.REFILL_LATE and arm.guard != "off":
            raise ConfigError(f"arm {name}: seats given away late cannot go with a guard")
    yield SimulatedRuns(plan, target)


class _Picture:
    """Who sits where, in all replicas.

    Attributes:
        world: that is looked at.
        meters: by name of the replica.
    """

    world: World

    def __init__(self, settings: WorldSettings, sizes: Sizes, *, late: bool) -> None:
        """``late``: seats that fall free are given away a step later; a planted fault."""
        self._sizes = sizes
        self._late = late
        self.meters = {
            f"replica-{number}": Meter(sizes.seats, number * sizes.seats)
            for number in range(settings.replicas)
        }

    def look(self, replica: Replica) -> None:
        """It has begun a step, or rests."""
        meter, scheduler = self.meters[replica.name], replica.scheduler
        riders = [int(each.request_id) for each in scheduler.running]
        blocks = sum(len(each.blocks) for each in scheduler.running)
        meter.look(self.world.now, riders, min(1.0, blocks / self._sizes.blocks))
        meter.steps, meter.budget_s = replica.load.step, replica.budget_s
        if self._late and replica.plan is not None:
            controls, seats = scheduler.controls, self._sizes.seats
            replica.obey(late_controls(controls, seats, replica.plan, len(riders)))

    def closed(self, now: float) -> list[Meter]:
        """The meters, nobody sitting any more."""
        for meter in self.meters.values():
            meter.look(now, (), 0.0)
        return list(self.meters.values())


def _given(asked: Sequence[Asked], planted: Planted | None) -> Iterator[Given]:
    """In order of time; a slow generator sends each later than the one before it."""
    favoured = min((each.tenant for each in asked), default="")
    late_s = DELAY_S if planted is Planted.SLOW_GENERATOR else 0.0
    doubled = planted is Planted.DOUBLE_WEIGHT
    ordered = sorted(asked, key=lambda each: (each.at_s, each.number))
    for index, each in enumerate(ordered):
        request = Request(
            id=str(each.number),
            prompt=each.prompt,
            sampling=SamplingParams(max_tokens=each.output, temperature=0.0, ignore_eos=True),
            tenant=each.tenant,
            weight=2.0 if doubled and each.tenant == favoured else 1.0,
        )
        patience_s = each.gives_up_after_s
        leaves_s = None if patience_s is None else each.at_s + patience_s
        yield Given(each.at_s + index * late_s, request, leaves_s)


def _outcomes(asked: Sequence[Asked], course: Course, machine: Machine) -> tuple[Outcome, ...]:
    answered = {int(each.request.id): each for each in course.asked}
    return tuple(
        _outcome(each, answered[each.number], machine)
        for each in sorted(asked, key=lambda each: each.number)
    )


def _outcome(asked: Asked, answered: Answered, machine: Machine) -> Outcome:
    fate = Fate.FAILED if answered.outcome is None else _FATES[answered.outcome]
    return Outcome(
        number=asked.number,
        tenant=asked.tenant,
        prompt=len(asked.prompt),
        asked=asked.output,
        intended_s=asked.at_s,
        sent_s=answered.arrived_at,
        ended_s=answered.arrived_at if answered.ended_at is None else answered.ended_at,
        tokens_s=tuple(answered.tokens_at),
        fate=fate,
        why=_why(fate, answered.label),
        alone_s=_alone_s(len(asked.prompt), asked.output, machine),
    )


def _why(fate: Fate, label: str) -> str:
    if fate is Fate.COMPLETED:
        return ""
    return "gave_up" if fate is Fate.GAVE_UP else label


def _alone_s(prompt: int, output: int, machine: Machine) -> float:
    """As the modelled steps take it, without noise: the prompt in chunks, then token by token."""
    seconds, done = 0.0, 0
    while done < prompt + output - 1:
        count = min(machine.token_budget, prompt - done) if done < prompt else 1
        done += count
        seconds += machine.base_s + machine.per_token_s * count + machine.per_position_s * done
    return seconds


def _seconds(outcomes: Sequence[Outcome]) -> float:
    first_s = min((each.intended_s for each in outcomes), default=0.0)
    return max((each.ended_s for each in outcomes), default=first_s) - first_s
