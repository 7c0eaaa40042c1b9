"""Guards and their states for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from chairlift.cluster.guard_policy import load_policy
from chairlift.cluster.guard_state import GuardState, Mode, Move, MoveKind, Rung
from chairlift.cluster.protocol import Controls
from chairlift.cluster.signals import SignalSettings
from chairlift.cluster.telemetry import Report
from chairlift.deployments.guard_keeper import GuardSettings

__all__ = ["BASE", "NOW", "guard_settings", "guard_state", "move", "report"]

NOW = 1_700_000_000.0
BASE = Controls()


def guard_settings(mode: Mode = Mode.ACT, base: Controls = BASE) -> GuardSettings:
    """With the policy that ships."""
    return GuardSettings(load_policy(), mode, base, SignalSettings(1.0))


def guard_state(version: int, rung: Rung = Rung.NORMAL) -> GuardState:
    """Entered at ``NOW``."""
    controls = replace(BASE, version=version)
    return GuardState(version=version, rung=rung, controls=controls, at=NOW, moved_at=NOW)


def move(**changes: Any) -> Move:
    """A step up because of one replica's KV cache."""
    fields: dict[str, Any] = {
        "at": 1000.0,
        "version": 7,
        "kind": MoveKind.UP,
        "before": Rung.NORMAL,
        "after": Rung.SMALLER_STEPS,
        "signal": "kv_use",
        "value": 0.97,
        "threshold": 0.95,
        "where": "replica-1",
        "owner": "serving",
        "what": "fewer tokens in a step",
    }
    return Move(**(fields | changes))


def report(router_id: str, state: GuardState | None = None, **changes: Any) -> Report:
    """Of a router that obeys the state; one that says everything tells it whole."""
    fields: dict[str, Any] = {
        "router_id": router_id,
        "model": "m",
        "seconds": {},
        "tens": {},
        "minutes": {},
        "totals": {},
        "weights": {},
        "queued": {},
        "oldest_s": {},
        "replicas": {},
        "after": -1,
        "open": 0,
        "guard_version": 0 if state is None else state.version,
    }
    fields |= changes
    fields.setdefault("guard", state if fields["after"] == -1 else None)
    return Report(**fields)
