"""What a study's runs are made on: one way to open each kind of target.

Owns the choice; a target's own module knows what a run on it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from chairlift.evaluation.study_plan import EngineTarget, Plan, ServiceTarget, SimulatedTarget
from chairlift.evaluation.study_run import Run
from chairlift.evaluation.study_work import Asked

__all__ = ["Runs", "open_target"]


class Runs(Protocol):
    """An open target.

    Attributes:
        vocab_size: token ids of prompts are below it.
    """

    vocab_size: int

    def run(
        self, arm_name: str, workload_name: str, round: int, order: int, asked: Sequence[Asked]
    ) -> Run:
        """One arm on one workload once; ``order`` runs of the study were before it."""


@contextmanager
def open_target(plan: Plan) -> Iterator[Runs]:
    """The plan's target, ready; it is closed at the end.

    Raises:
        ConfigError: an arm asks for what the target has not.
        StartupError: the model cannot be used.
    """
    match plan.target:
        case EngineTarget() as target:
            # What computes is imported where something is to be computed.
            from chairlift.evaluation.study_engine import open_engine

            with open_engine(plan, target) as engine:
                yield engine
        case SimulatedTarget() as target:
            from chairlift.evaluation.study_simulated import open_simulated

            with open_simulated(plan, target) as simulated:
                yield simulated
        case ServiceTarget() as target:
            from chairlift.evaluation.study_service import open_service

            with open_service(plan, target) as service:
                yield service
