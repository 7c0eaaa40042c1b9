"""Autoscaling in the configuration: within which bounds, how fast, and at which cost.

Owns what can be set and what contradicts itself; what is made of it is ``autoscaling``'s.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["AutoscalingConfig"]

Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]


class AutoscalingConfig(BaseModel):
    """The number of worker replicas follows the load (docs/autoscaling.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    min_replicas: Annotated[int, Field(ge=0, le=256)] = 1
    """With 0 the last one goes when nobody has asked for anything in ``idle_s``."""
    max_replicas: Annotated[int, Field(ge=1, le=256)] = 4
    target_load: Share = 0.8
    """Share of their time that replicas are to be busy; …"""
    low_load: Share = 0.6
    """… and below which those that would remain must stay for one to go."""
    queue_share: Share = 0.3
    """Part of the target for first tokens that the oldest may wait before more are called."""
    objective: Share = 0.95
    """Share of requests that are to meet their targets."""
    start_s: Seconds = 10.0
    """What a new replica takes to serve: so far ahead are rising arrivals looked at."""
    up_cool_down_s: Seconds = 2.0
    """Between two steps up."""
    down_cool_down_s: Seconds = 10.0
    """After any step, before one down."""
    hold_s: Seconds = 60.0
    """For how long fewer replicas must have been enough."""
    down_share: Share = 0.25
    """Of the replicas, that may go in one step; one may always."""
    idle_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 300.0
    max_price_per_hour: Annotated[float, Field(gt=0)] | None = None
    """In the currency of ``telemetry.price_per_replica_hour``."""
    max_replica_hours_per_day: Annotated[float, Field(gt=0)] | None = None
    """Once they are used up, there are ``min_replicas``, or one, until midnight (UTC)."""
    policy: Literal["work", "ongoing-requests"] = "work"
    """``ongoing-requests`` is Ray Serve's own rule, for comparison: of all above, bounds alone are
    its."""
    ongoing_requests: Annotated[float, Field(gt=0)] = 2.0
    """Of that rule: for one replica; …"""
    up_delay_s: Seconds = 30.0
    """… for how long more, …"""
    down_delay_s: Seconds = 600.0
    """… or fewer replicas must have been asked for; …"""
    look_back_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 30.0
    """… and over how long requests are counted."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError(
                f"max_replicas is {self.max_replicas}, less than min_replicas: {self.min_replicas}"
            )
        if self.low_load >= self.target_load:
            raise ValueError(
                f"low_load is {self.low_load:g}, and has to be less than target_load: "
                f"{self.target_load:g}, else replicas would come and go"
            )
        least = 24 * self.min_replicas
        if self.max_replica_hours_per_day is not None and self.max_replica_hours_per_day < least:
            raise ValueError(
                f"max_replica_hours_per_day is {self.max_replica_hours_per_day:g}, but min_replicas"
                f" alone take {least}"
            )
        return self
