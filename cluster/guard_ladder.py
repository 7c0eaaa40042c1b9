"""How the Guard goes up and down its ladder: pure functions from a state to the next.

Owns time and the rules; what a rung puts in force is ``guard_controls``, and what is recorded of a
move and who is told is ``guard``. ``advance`` is one look at the readings:

    track: readings ──► signals beyond their threshold ──► alarms, and what each asks for
    then, unless telemetry contradicts itself or a person holds the rung:
    rise: at once to what is asked for, and one rung more where that did not help for a while
    fall: one rung, when nothing asks for the present one and it has been calm for the leave time
    adjust: the share that is let in, on the rungs that cut it

The bounds, whatever the signals do, in any hour in which no person has a hand in it; L is the leave
time without relapses, W the time within which going up again is a relapse, n the relapses after
which the leave time grows no more (60 s, 300 s and 4, as shipped):

- steps down: 3600/L, for each needs a leave time since the rung last changed (60);
- steps up: 10 more than down, for each is a rung at least and there are ten (70);
- changes of direction, a step up after one down: 2 + n + 3600/min(L+W, longest leave time) (16).
  Each that is no relapse takes L+W at least. One that is takes less only in the first n in a row,
  and those are paid for before n can be 0 again, since that takes (L+W)·2ⁿ;
- waits for a person, freezes and thaws: 3600/L + 1 each, for each needs signals that were over;
- changes of the share that is let in: 3600/``ADJUST_EVERY_S``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from chairlift.cluster.guard_policy import GuardPolicy, Ladder, SignalPolicy
from chairlift.cluster.guard_state import Alarm, GuardState, MoveKind, Readings, Rung, Signal

__all__ = ["ADJUST_EVERY_S", "ADJUST_FROM", "Change", "advance", "at", "loudest"]

ADJUST_EVERY_S = 5.0
ADJUST_FROM = 0.1
"""Smaller changes of the share that is let in are not worth a new version."""


@dataclass(frozen=True, slots=True)
class Change:
    """A state in which something has changed that is to be recorded, and the signal it is for."""

    state: GuardState
    kind: MoveKind
    signal: Signal | None


def advance(
    state: GuardState, readings: Readings, now: float, policy: GuardPolicy
) -> tuple[GuardState, Change | None]:
    """Look at the readings once.

    Returns:
        The state with its clocks brought up to date, and what changes in it, if anything does.
    """
    state = _track(at(state, now), readings, policy)
    if (Signal.CONTRADICTION in state.active) != state.frozen:
        return state, _freeze(state)
    if state.frozen:
        return state, None
    change = None
    if not state.held_by:
        state = _climb(state, policy)
        change = _rise(state, readings, policy) or _fall(state, policy.ladder)
    return state, change or _adjust(state, readings, policy.ladder)


def at(state: GuardState, now: float) -> GuardState:
    """The clock moves on. Where it was set back, so is all that is remembered."""
    if (by := state.at - now) <= 0:
        return replace(state, at=now)
    return replace(
        state,
        at=now,
        moved_at=state.moved_at - by,
        fell_at=None if state.fell_at is None else state.fell_at - by,
        adjusted_at=state.adjusted_at - by,
        above_since={signal: since - by for signal, since in state.above_since.items()},
        active={
            signal: replace(
                alarm,
                since=alarm.since - by,
                calm_since=None if alarm.calm_since is None else alarm.calm_since - by,
            )
            for signal, alarm in state.active.items()
        },
    )


def _track(state: GuardState, readings: Readings, policy: GuardPolicy) -> GuardState:
    """What the readings say of each signal, and what is over; the rung stays."""
    above: dict[Signal, float] = {}
    active: dict[Signal, Alarm] = {}
    for signal in Signal:
        alarm = state.active.get(signal)
        if state.frozen and signal is not Signal.CONTRADICTION:
            if alarm is not None:  # what the others say now is not believed, neither way
                active[signal] = replace(alarm, calm_since=None)
            continue
        its = policy.signals[signal]
        value = _value(readings, signal)
        if value is not None and _excess(signal, value, its) >= 1:
            above[signal] = state.above_since.get(signal, state.at)
            if alarm is None and state.at - above[signal] >= its.for_s:
                alarm = Alarm(state.at, its.rung or Rung.NORMAL)
            if alarm is not None and its.urgent is not None and value >= its.urgent.threshold:
                alarm = replace(alarm, asks=max(alarm.asks, its.urgent.rung))
        if alarm is None:
            continue
        calm = value is None or _excess(signal, value, its) <= policy.ladder.leave_share
        since = (state.at if alarm.calm_since is None else alarm.calm_since) if calm else None
        # A freeze is not a rung: it lasts no longer for what the ladder went through.
        relapses = 0 if signal is Signal.CONTRADICTION else state.relapses
        if since is None or state.at - since < policy.ladder.leave_after_s(relapses):
            active[signal] = replace(alarm, calm_since=since)
    waiting = state.waiting_for
    if waiting is not None and all(alarm.asks < waiting for alarm in active.values()):
        waiting = None
    state = replace(state, above_since=above, active=active, waiting_for=waiting)
    return _forgive(state, policy.ladder)


def _forgive(state: GuardState, ladder: Ladder) -> GuardState:
    quiet_s = state.at - state.moved_at
    if state.rung > Rung.NORMAL or quiet_s <= ladder.relapse_within_s(state.relapses):
        return state
    return replace(state, relapses=0, fell_at=None)


def _value(readings: Readings, signal: Signal) -> float | None:
    """None where it is not known: a number that is none says nothing."""
    reading = readings.get(signal)
    return None if reading is None or math.isnan(reading.value) else reading.value


def _excess(signal: Signal, value: float, its: SignalPolicy) -> float:
    """The value over its threshold, or the other way round where less is worse; 1 is beyond."""
    if signal is not Signal.STEPS_LEFT:
        return value / its.threshold
    return its.threshold / value if value > 0 else math.inf


def _freeze(state: GuardState) -> Change:
    if not state.frozen:
        return Change(replace(state, frozen=True), MoveKind.FREEZE, Signal.CONTRADICTION)
    # What was asked for before still holds, but has to show anew that it did not help.
    active = {signal: replace(alarm, since=state.at) for signal, alarm in state.active.items()}
    return Change(replace(state, frozen=False, active=active), MoveKind.THAW, Signal.CONTRADICTION)


def _climb(state: GuardState, policy: GuardPolicy) -> GuardState:
    """Signals that this rung has not helped ask for one more."""
    active = dict(state.active)
    for signal, alarm in state.active.items():
        if _has_not_helped(state, signal, alarm, policy.signals[signal]):
            active[signal] = replace(alarm, asks=max(alarm.asks, Rung(state.rung + 1)))
    return replace(state, active=active)


def _has_not_helped(state: GuardState, signal: Signal, alarm: Alarm, its: SignalPolicy) -> bool:
    if its.climbs_to is None or its.climb_after_s is None or state.rung >= its.climbs_to:
        return False
    above_since = state.above_since.get(signal, math.inf)
    waited_s = state.at - max(state.moved_at, alarm.since)
    return waited_s >= its.climb_after_s and state.at - above_since >= its.for_s


def loudest(state: GuardState) -> Signal | None:
    """The active signal that asks for the highest rung, the earliest of several."""
    return max(
        (signal for signal in Signal if signal in state.active),
        key=lambda signal: state.active[signal].asks,
        default=None,
    )


def _rise(state: GuardState, readings: Readings, policy: GuardPolicy) -> Change | None:
    signal = loudest(state)
    if signal is None or state.active[signal].asks <= state.rung:
        return None
    wanted = range(state.rung + 1, state.active[signal].asks + 1)
    needs_word = next((Rung(rung) for rung in wanted if rung in policy.ladder.approval), None)
    rung = state.active[signal].asks if needs_word is None else Rung(needs_word - 1)
    if rung == state.rung:
        if needs_word == state.waiting_for:
            return None
        return Change(replace(state, waiting_for=needs_word), MoveKind.WAIT, signal)
    ladder, relapses = policy.ladder, state.relapses
    if state.fell_at is not None and (
        state.at - state.fell_at <= ladder.relapse_within_s(relapses)
    ):
        relapses = min(relapses + 1, ladder.most_relapses)
    risen = replace(
        state,
        rung=rung,
        moved_at=state.at,
        fell_at=None,
        relapses=relapses,
        raised_by=signal,
    )
    if rung >= Rung.CUT_ADMISSION > state.rung:
        risen = replace(risen, admit=_share(state, readings, ladder), adjusted_at=state.at)
    return Change(risen, MoveKind.UP, signal)


def _fall(state: GuardState, ladder: Ladder) -> Change | None:
    """Not from ``STOP``: who has ended the service has to start it."""
    if state.rung in (Rung.NORMAL, Rung.STOP):
        return None
    if any(alarm.asks >= state.rung for alarm in state.active.values()):
        return None
    if state.at - state.moved_at < ladder.leave_after_s(state.relapses):
        return None
    rung = Rung(state.rung - 1)
    fallen = replace(
        state,
        rung=rung,
        moved_at=state.at,
        fell_at=state.at,
        admit=state.admit if rung >= Rung.CUT_ADMISSION else 1.0,
    )
    return Change(fallen, MoveKind.DOWN, state.raised_by)


def _share(state: GuardState, readings: Readings, ladder: Ladder) -> float:
    """What is to be let in of what comes.

    The load counts what comes, refused or not, so that letting in less does not make it smaller.
    While something asks for the cut, more comes than can be served, whatever the load says.
    """
    load = _value(readings, Signal.OFFERED_LOAD)
    if load is None:
        return state.admit
    if any(a.asks >= Rung.CUT_ADMISSION and a.calm_since is None for a in state.active.values()):
        load = max(load, 1.0)
    return min(1.0, max(ladder.least_admit, ladder.aim / load)) if load > 0 else 1.0


def _adjust(state: GuardState, readings: Readings, ladder: Ladder) -> Change | None:
    if not Rung.CUT_ADMISSION <= state.rung < Rung.STOP or "admit" in state.overrides:
        return None
    share = _share(state, readings, ladder)
    if abs(share - state.admit) < ADJUST_FROM - 1e-9:
        return None
    if state.at - state.adjusted_at < ADJUST_EVERY_S:
        return None
    adjusted = replace(state, admit=share, adjusted_at=state.at)
    return Change(adjusted, MoveKind.ADJUST, Signal.OFFERED_LOAD)
