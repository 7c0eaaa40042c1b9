"""What the Guard does, in words: for logs, events, pages and people."""

from __future__ import annotations

from collections.abc import Mapping

from chairlift.cluster.guard_state import GuardState, Move, MoveKind, Rung, Signal

__all__ = ["MOST_REASON", "reason", "what_changes"]

MOST_REASON = 200
"""Characters of a reason at most."""

_WORDS: Mapping[Rung, str] = {
    Rung.NORMAL: "all as configured",
    Rung.NO_SPECULATION: "nothing is computed twice on the chance that it helps",
    Rung.SMALLER_STEPS: "fewer tokens in a step, fewer seats",
    Rung.REFUSE_BEST_EFFORT: "the lowest class is refused, tenants are served by weight",
    Rung.DEMOTE_LATE: "who cannot be in time any more goes last",
    Rung.RESERVE: "seats only with blocks for the greatest length, no preference for caches",
    Rung.CUT_ADMISSION: "of each tenant only the share is let in that can be served",
    Rung.STATIC: "static batching",
    Rung.PAGE: "a person is called",
    Rung.ROLL_BACK: "the last configuration that did well comes back",
    Rung.STOP: "nothing is let in, the service ends",
}
"""What each rung adds to the ones below it."""


def what_changes(kind: MoveKind, before: GuardState, after: GuardState) -> str:
    """From one state to the next."""
    if kind is MoveKind.FREEZE:
        return "nothing is decided from telemetry until it does not contradict itself any more"
    if kind is MoveKind.THAW:
        return "decisions are made from telemetry again"
    if kind is MoveKind.WAIT and after.waiting_for is not None:
        return f"{_name(after.waiting_for)} needs a person's word: {_WORDS[after.waiting_for]}"
    changes = [_rungs(before.rung, after.rung)]
    if after.admit != before.admit and after.rung >= Rung.CUT_ADMISSION:
        changes.append(f"{after.admit:.0%} is let in")
    if after.overrides != before.overrides:
        by_hand = ", ".join(f"{name} = {value}" for name, value in after.overrides.items())
        changes.append(by_hand or "nothing is set by hand")
    if after.held_by != before.held_by:
        changes.append("the rung is held" if after.held_by else "the rung moves by itself")
    return "; ".join(change for change in changes if change)


def _rungs(before: Rung, after: Rung) -> str:
    if after > before:
        return "; ".join(_WORDS[Rung(rung)] for rung in range(before + 1, after + 1))
    if after == Rung.NORMAL < before:
        return _WORDS[after]
    undone = "; ".join(_WORDS[Rung(rung)] for rung in range(before, after, -1))
    return f"no longer: {undone}" if undone else ""


def reason(move: Move) -> str:
    """One line of ``MOST_REASON`` characters at most, and none that cannot be printed."""
    owner = f" ({move.owner})" if move.owner else ""
    if move.by:
        line = f"{move.kind} by {move.by} → {_name(move.after)}"
    elif move.kind is MoveKind.DOWN:
        line = f"nothing asks for {_name(move.before)} → {_name(move.after)}"
    else:
        line = f"{_measured(move)} → {_TARGETS.get(move.kind) or _name(move.after)}"
    line = f"{line[: MOST_REASON - len(owner)]}{owner}"
    return "".join(letter if letter.isprintable() else " " for letter in line)


_TARGETS: Mapping[MoveKind, str] = {
    MoveKind.FREEZE: "frozen",
    MoveKind.THAW: "not frozen",
    MoveKind.WAIT: "waits for a person's word",
}


def _measured(move: Move) -> str:
    if move.value is None or move.threshold is None:
        return move.signal
    is_worse_below = move.signal == Signal.STEPS_LEFT
    is_over = move.kind is MoveKind.THAW
    sign = "≤" if is_worse_below != is_over else "≥"
    where = f" at {move.where}" if move.where else ""
    return f"{move.signal} {move.value:.3g} {sign} {move.threshold:.3g}{where}"


def _name(rung: Rung) -> str:
    return rung.name.lower()
