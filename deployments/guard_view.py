"""How the Guard stands, as JSON can hold it.

Owns the names by which pages, metrics and commands know the Guard; it decides nothing:

    {"mode": "act", "version": 12, "rung": "no_speculation", "rung_number": 1, "since": 1764…,
     "admit": 1.0, "held_by": null, "waiting_for": null, "frozen": false, "overrides": {},
     "open": 17, "controls": {"token_budget": 512, "lowest": "batch", …},
     "signals": {"kv_use": {"value": 0.93, "threshold": 0.9, "where": "replica-1",
                            "owner": "capacity", "active": true}, …},
     "moves": [{"at": 1764…, "version": 12, "kind": "up", "before": "normal",
                "after": "no_speculation", "signal": "kv_use", "text": "…", …}, …],
     "moves_total": [{"kind": "up", "signal": "kv_use", "rung": "no_speculation", "count": 1}, …],
     "calls": {"sent": 0, "failed": 0, "dropped": 0}}

Times are seconds of the wall clock. All signals are there; ``value`` is null while it is not known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from chairlift.cluster.guard import Guard
from chairlift.cluster.guard_policy import GuardPolicy, SignalPolicy
from chairlift.cluster.guard_state import Mode, Move, Reading, Readings, Rung, Signal
from chairlift.cluster.protocol import Batching, Controls, Priority

__all__ = ["OFF", "describe", "guard_view", "move_view", "rung_name"]


OFF: Mapping[str, Any] = {"mode": Mode.OFF.value}
"""The view of a Guard that is not there."""


def guard_view(guard: Guard, policy: GuardPolicy, mode: Mode, readings: Readings) -> dict[str, Any]:
    """All but what ``GuardKeeper`` adds: open requests, totals of moves, calls."""
    state = guard.state
    return {
        "mode": mode.value,
        "version": state.version,
        "rung": rung_name(state.rung),
        "rung_number": int(state.rung),
        "since": state.moved_at or None,
        "admit": state.admit,
        "held_by": state.held_by or None,
        "waiting_for": None if state.waiting_for is None else rung_name(state.waiting_for),
        "frozen": state.frozen,
        "overrides": {name: _plain(value) for name, value in state.overrides.items()},
        "controls": _controls_view(state.controls),
        "signals": {
            signal.value: _signal_view(policy.signals[signal], readings.get(signal))
            | {"active": signal in state.active}
            for signal in Signal
        },
        "moves": [move_view(move) for move in state.moves],
    }


def rung_name(rung: Rung) -> str:
    """As people and JSON write it."""
    return rung.name.lower()


def move_view(move: Move) -> dict[str, Any]:
    """The move; rungs by name, and ``text`` for people."""
    return dataclasses.asdict(move) | {
        "kind": move.kind.value,
        "before": rung_name(move.before),
        "after": rung_name(move.after),
        "text": describe(move),
    }


def describe(move: Move) -> str:
    """The move in one line: what, why, by whom or whose it is, and what that means."""
    rungs = f"on {rung_name(move.after)}"
    if move.before != move.after:
        rungs = f"{rung_name(move.before)} → {rung_name(move.after)}"
    line = f"{move.kind.value} {rungs}"
    if move.signal:
        where = f" of {move.where}" if move.where else ""
        line += f", for {move.signal}{where}{_compared(move)}"
    if move.by or move.owner:
        line += f", by {move.by}" if move.by else f", owner {move.owner}"
    line += f": {move.what}" if move.what else ""
    return f"{line} (only said)" if move.shadow else line


def _compared(move: Move) -> str:
    if move.value is None:
        return ""
    limit = "" if move.threshold is None else f" (threshold {move.threshold:.4g})"
    return f" {move.value:.4g}{limit}"


def _signal_view(policy: SignalPolicy, reading: Reading | None) -> dict[str, Any]:
    return {
        "value": None if reading is None else reading.value,
        "threshold": policy.threshold,
        "where": "" if reading is None else reading.where,
        "owner": policy.owner,
    }


def _controls_view(controls: Controls) -> dict[str, Any]:
    return {name: _plain(value) for name, value in dataclasses.asdict(controls).items()}


def _plain(value: object) -> object:
    """Of a field of Controls; classes by name, as requests have them."""
    if isinstance(value, Priority):
        return value.name.lower()
    return value.value if isinstance(value, Batching) else value
