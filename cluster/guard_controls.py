"""What the Guard's rungs and a person's word put in force.

Owns the translation of a rung to Controls, and the check of what a person may set by hand. It knows
nothing of signals or of time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError

from chairlift.cluster.config_sections import Section
from chairlift.cluster.errors import InvalidRequest
from chairlift.cluster.guard_policy import Ladder
from chairlift.cluster.guard_state import GuardState, Rung
from chairlift.cluster.protocol import Batching, Controls, Priority

__all__ = ["checked_overrides", "controls_of"]


def _no_truth(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number")
    return value


def _class_named(value: Any) -> Any:
    if isinstance(value, str) and value.upper() in Priority.__members__:
        return Priority[value.upper()]
    return _no_truth(value)


Limit = Annotated[int, BeforeValidator(_no_truth), Field(ge=1)]


class _Overrides(Section):
    """What can be set by hand; who sets nothing of it leaves it to the Guard."""

    batching: Batching | None = None
    token_budget: Limit | None = None
    max_sequences: Limit | None = None
    reserve: bool | None = None
    hedging: bool | None = None
    affinity: bool | None = None
    lowest: Annotated[Priority, BeforeValidator(_class_named)] | None = None
    demote_late: bool | None = None
    admit: Annotated[float, BeforeValidator(_no_truth), Field(ge=0, le=1)] | None = None
    fair: bool | None = None


def checked_overrides(overrides: Mapping[str, object], base: Controls) -> dict[str, object]:
    """What a person asks for as values of Controls' fields; None leaves a field as it is.

    Args:
        overrides: by field, as JSON has them.
        base: what the replicas were made for; limits cannot be above it.

    Raises:
        InvalidRequest: which names the field.
    """
    try:
        checked = _Overrides.model_validate(dict(overrides))
    except ValidationError as error:
        fault = error.errors()[0]
        name = str(fault["loc"][0])
        if fault["type"] == "extra_forbidden":
            fields = ", ".join(_Overrides.model_fields)
            raise InvalidRequest(f"{name}: expected one of {fields}", param=name) from None
        message = fault["msg"].removeprefix("Value error, ")
        raise InvalidRequest(f"{name}: {message} (got {fault['input']!r})", param=name) from None
    known: dict[str, Any] = {name: value for name, value in checked if value is not None}
    for name in ("token_budget", "max_sequences"):
        most = getattr(base, name)
        if known.get(name, most) > most:
            raise InvalidRequest(f"{name}: the replicas were made for {most} at most", param=name)
    return known


def controls_of(state: GuardState, base: Controls, ladder: Ladder) -> Controls:
    """What is in force in a state, but for its reason.

    Each rung keeps what the ones below it do, and nothing goes beyond the base: where that is
    stricter already, it stays.
    """
    rung, changes = state.rung, dict[str, Any]()
    if rung >= Rung.NO_SPECULATION:
        changes["hedging"] = False
    if rung >= Rung.SMALLER_STEPS:
        share = ladder.smaller_steps
        changes["token_budget"] = max(1, int(base.token_budget * share.token_budget))
        changes["max_sequences"] = max(1, int(base.max_sequences * share.max_sequences))
    if rung >= Rung.REFUSE_BEST_EFFORT:
        changes |= {"lowest": min(base.lowest, Priority.STANDARD), "fair": True}
    if rung >= Rung.DEMOTE_LATE:
        changes["demote_late"] = True
    if rung >= Rung.RESERVE:
        changes |= {"reserve": True, "affinity": False}
    if rung >= Rung.CUT_ADMISSION:
        changes["admit"] = min(base.admit, state.admit)
    if rung >= Rung.STATIC and base.batching is Batching.CONTINUOUS:
        changes["batching"] = Batching.STATIC
    if rung >= Rung.STOP:
        changes["admit"] = 0.0
    changes |= state.overrides
    # A state may come from a Hub that was configured for larger replicas.
    for name in ("token_budget", "max_sequences"):
        changes[name] = min(changes.get(name, getattr(base, name)), getattr(base, name))
    return dataclasses.replace(
        base, version=state.version, by_person=bool(state.held_by), **changes
    )
