"""What the Guard goes by: thresholds, owners and the ladder, from a YAML file that people review.

Owns what can be set, its bounds, and where it is read; ``guard.yaml`` has the values that ship,
each with its reason. Who goes by it is ``guard_ladder``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from chairlift.cluster.config_sections import Section
from chairlift.cluster.errors import ConfigError
from chairlift.cluster.guard_state import Rung, Signal
from chairlift.cluster.yaml_text import read_yaml

__all__ = [
    "GuardPolicy",
    "Ladder",
    "Limits",
    "SignalPolicy",
    "SmallerSteps",
    "Webhook",
    "load_policy",
    "rung_named",
]

SHIPPED = Path(__file__).with_name("guard.yaml")


def rung_named(value: object) -> Rung:
    """``refuse_best_effort``, or its number; ValueError for what is no rung."""
    if isinstance(value, str) and value.upper() in Rung.__members__:
        return Rung[value.upper()]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(Rung):
        return Rung(value)
    raise ValueError(f"expected one of {', '.join(rung.name.lower() for rung in Rung)}")


RungName = Annotated[Rung, BeforeValidator(rung_named)]
Role = Annotated[str, StringConstraints(pattern="^[a-z][a-z0-9_-]{0,31}$")]
Share = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(gt=0, lt=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SmallerSteps(Section):
    """What is left of the limits on ``SMALLER_STEPS``."""

    token_budget: Share
    max_sequences: Share


class Ladder(Section):
    """How the rungs are left, and what some of them do."""

    leave_share: Part
    """A signal is calm at this share of its threshold, or better."""
    leave_for_s: Seconds
    """… and over when it was calm for so long, twice as long after each relapse, …"""
    longest_leave_for_s: Seconds
    """… but never longer than this."""
    relapse_s: Seconds
    """Up again within this time after a step down is a relapse; twice as long after each one."""
    smaller_steps: SmallerSteps
    approval: frozenset[RungName]
    """Rungs that are not entered without a person's word."""
    least_admit: Share
    """The share that is let in at least, below ``STOP``."""
    aim: Share
    """The share of capacity that is filled where admission is cut."""

    @model_validator(mode="after")
    def _check(self) -> Ladder:
        if self.longest_leave_for_s < self.leave_for_s:
            raise ValueError("longest_leave_for_s must not be below leave_for_s")
        if self.relapse_s < self.leave_for_s:
            raise ValueError("relapse_s must not be below leave_for_s")
        if Rung.STOP not in self.approval:
            raise ValueError("approval must have stop: software alone never ends the service")
        return self

    @property
    def most_relapses(self) -> int:
        """That still make a difference."""
        count = 0
        while self.leave_for_s * 2**count < self.longest_leave_for_s:
            count += 1
        return count

    def leave_after_s(self, relapses: int) -> float:
        """How long it must be calm, after so many relapses."""
        return min(self.leave_for_s * 2.0**relapses, self.longest_leave_for_s)

    def relapse_within_s(self, relapses: int) -> float:
        """How soon after a step down a step up is a relapse, after so many of them."""
        return self.relapse_s * 2.0 ** min(relapses, self.most_relapses)


class Urgent(Section):
    """Beyond which value a signal skips the rungs that would come too late."""

    threshold: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    rung: RungName


class SignalPolicy(Section):
    """What one signal does. ``rung``, ``climbs_to`` and ``climb_after_s`` belong together."""

    threshold: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    for_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """How long it must be beyond its threshold without a break."""
    rung: RungName | None = None
    """The lowest that it asks for; None: it freezes the Guard."""
    climbs_to: RungName | None = None
    """The highest that it can ask for, …"""
    climb_after_s: Seconds | None = None
    """… one more each time that this did not help."""
    urgent: Urgent | None = None
    """What it asks for at once where it is far beyond."""
    owner: Role
    """The role that answers for it."""
    within_s: Seconds
    """The promise: from the fault to the move."""
    why: Annotated[str, StringConstraints(pattern="^[^\\n]{1,200}$")]

    @model_validator(mode="after")
    def _check(self) -> SignalPolicy:
        if not (self.rung is None) == (self.climbs_to is None) == (self.climb_after_s is None):
            raise ValueError("rung, climbs_to and climb_after_s belong together")
        if self.rung is not None and self.climbs_to is not None:
            if self.rung == Rung.NORMAL:
                raise ValueError("rung must be above normal")
            if self.climbs_to < self.rung:
                raise ValueError("climbs_to must not be below rung")
        if self.urgent is not None and not (
            self.rung and self.climbs_to and self.rung < self.urgent.rung <= self.climbs_to
        ):
            raise ValueError("urgent.rung must be above rung, and not above climbs_to")
        if self.within_s < self.for_s:
            raise ValueError("within_s must not be below for_s")
        return self


class Limits(Section):
    """What signals that are made of several figures are measured against."""

    objective: Part
    """Share of requests that are to meet their targets."""
    slowdown_ratio: Annotated[float, Field(gt=1, allow_inf_nan=False)]
    """How much slower the worst-served tenant may be than the median one."""
    starvation_s: Seconds
    """How long anybody may wait."""


class Webhook(Section):
    """Whom the Guard calls."""

    url: Annotated[str, StringConstraints(pattern="^https?://[^/\\s]+\\S*$")]
    owners: tuple[Role, ...] = ()
    """For whose signals; empty: for all."""


class GuardPolicy(Section):
    """The whole file."""

    ladder: Ladder
    limits: Limits
    signals: dict[Signal, SignalPolicy]
    webhooks: tuple[Webhook, ...] = ()

    @field_validator("signals", mode="before")
    @classmethod
    def _check_names(cls, signals: Any) -> Any:
        if isinstance(signals, Mapping):
            names = set(Signal)
            if unknown := sorted(str(name) for name in signals.keys() - names):
                raise ValueError(f"there is no signal {unknown[0]}")
            if missing := [name for name in Signal if name not in signals]:
                raise ValueError(f"{missing[0]} is missing")
        return signals

    @model_validator(mode="after")
    def _check(self) -> GuardPolicy:
        for name, signal in self.signals.items():
            if (signal.rung is None) != (name is Signal.CONTRADICTION):
                raise ValueError(f"signals.{name}.rung: all but contradiction have one")
        owners = {signal.owner for signal in self.signals.values()}
        for number, webhook in enumerate(self.webhooks):
            if unknown := sorted(set(webhook.owners) - owners):
                raise ValueError(f"webhooks.{number}.owners: {unknown[0]} owns no signal")
        return self


def load_policy(file: str | Path | None = None) -> GuardPolicy:
    """Read a policy.

    Args:
        file: YAML; None for the one that ships.

    Raises:
        ConfigError: one line that names the file and the path at fault.
    """
    path = SHIPPED if file is None else Path(file)
    try:
        return GuardPolicy.model_validate(read_yaml(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {_one_line(error)}") from None


def _one_line(error: ValidationError) -> str:
    fault = error.errors()[0]
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"{where}: unknown setting"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error" and isinstance(fault["input"], dict | GuardPolicy | Section):
        return f"{where}: {message}" if where else message
    return f"{where or 'the file'}: {message} (got {fault['input']!r})"
