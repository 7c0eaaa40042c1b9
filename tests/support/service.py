"""A running ``chairlift serve``, as the drills start and stop it."""

from chairlift.evaluation.drill_service import (
    STOP_DEADLINE_S,
    Service,
    free_port,
    running_service,
    wait_until,
)

__all__ = ["STOP_DEADLINE_S", "Service", "free_port", "running_service", "wait_until"]
