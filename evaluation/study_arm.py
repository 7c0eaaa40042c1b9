"""What an arm of a plan means for a replica, and the faults that can be planted in its steps.

Owns the reading of an arm's settings beside those of the plan, and what it would take alone; knows
neither load nor target.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from chairlift.cluster.errors import ConfigError
from chairlift.cluster.protocol import Controls
from chairlift.evaluation.study_plan import Arm, Plan
from chairlift.workers.sequence import StepPlan

__all__ = ["DELAY_S", "SLOWER", "Lone", "Sizes", "arm_of", "late_controls", "longest", "sizes_of"]

SLOWER = 0.05
"""Of a step's time, which it takes longer as a planted fault."""

DELAY_S = 0.005
"""By which each request of a slow generator is sent later than the one before it."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one replica, with an arm's settings."""

    seats: int
    token_budget: int
    blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class Lone:
    """What a request takes that is alone on the machine, as a straight line."""

    per_prompt_token_s: float = 0.0
    step_s: float = 0.0

    def alone_s(self, prompt: int, output: int) -> float:
        """From its arrival to its last token."""
        return prompt * self.per_prompt_token_s + output * self.step_s


def arm_of(plan: Plan, name: str) -> Arm:
    """Raises ConfigError where the plan has none of that name."""
    if name not in plan.arms:
        raise ConfigError(f"the plan has no arm {name!r}; there are {', '.join(plan.arms)}")
    return plan.arms[name]


def longest(plan: Plan) -> int:
    """Tokens of the longest sequence that any workload may bring."""
    return max(each.limits.prompt + each.limits.output for each in plan.workloads.values())


def sizes_of(plan: Plan, arm: Arm) -> Sizes:
    """Without a number of blocks there is room for every seat at the greatest length."""
    seats = arm.seats or plan.seats
    ample = seats * -(-longest(plan) // plan.block_size)
    return Sizes(
        seats=seats,
        token_budget=arm.token_budget or plan.token_budget,
        blocks=arm.blocks or plan.blocks or ample,
        block_size=plan.block_size,
    )


def late_controls(controls: Controls, seats: int, plan: StepPlan, running: int) -> Controls:
    """A planted fault: a seat that falls free is given away one step later than it could be.

    To be put in force while ``plan`` is computed: seats that fall free with it are left out. Where
    nobody stays, no step passes in which one could be late.
    """
    ending = sum(
        piece.samples and piece.sequence.num_output + 1 >= piece.sequence.sampling.max_tokens
        for piece in plan.slices
    )
    left = seats if ending >= running else seats - ending
    return replace(controls, version=controls.version + 1, max_sequences=left)
