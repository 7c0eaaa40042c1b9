"""The Guard: backs off before it hurts, one rung of a ladder at a time.

Owns the state, what is recorded of each move, and what people do to it by hand. The rules are
``guard_ladder``, what a rung puts in force ``guard_controls``, and what all of it goes by
``guard_policy``. Pure: readings and the time, in seconds of the wall clock, are passed in; moves
and a state with Controls come out, and who asks for the state sends it on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from chairlift.cluster.errors import InvalidRequest
from chairlift.cluster.guard_controls import checked_overrides, controls_of
from chairlift.cluster.guard_ladder import Change, advance, at, loudest
from chairlift.cluster.guard_policy import GuardPolicy
from chairlift.cluster.guard_state import (
    Alarm,
    GuardState,
    Mode,
    Move,
    MoveKind,
    Readings,
    Rung,
    Signal,
)
from chairlift.cluster.guard_words import reason, what_changes
from chairlift.cluster.protocol import Controls

__all__ = ["MOST_MOVES", "Guard"]

MOST_MOVES = 64
"""That are kept in the state."""

MOST_NAME = 64


class Guard:
    """One for the cluster; its state goes on after its death (``adopt``)."""

    def __init__(
        self,
        policy: GuardPolicy,
        base: Controls,
        mode: Mode,
        state: GuardState | None = None,
    ) -> None:
        """Start.

        Args:
            policy: what it goes by.
            base: Controls as configured, which are in force on ``NORMAL``.
            mode: whether it acts.
            state: to go on from; by default it has never moved.
        """
        self._policy = policy
        self._base = base
        self._mode = mode
        self._state = state or GuardState(controls=replace(base, version=0))

    @property
    def state(self) -> GuardState:
        return self._state

    def step(self, readings: Readings, now: float) -> list[Move]:
        """Look at the readings; about once a second.

        Returns:
            What it did, one move at most; also the last of ``state.moves``.
        """
        if self._mode is Mode.OFF:
            return []
        self._state, change = advance(self._state, readings, now, self._policy)
        return [] if change is None else [self._record(change, readings)]

    def adopt(self, state: GuardState) -> bool:
        """Go on from a state that routers obey, if it is newer than this Guard's own.

        What was counted of signals that were not alarms yet begins anew, and calm too: the state is
        as old as its last move. Where policy, base or mode have changed, other Controls come of
        it; then they have a version of their own.

        Returns:
            Whether it was newer.
        """
        if state.version <= self._state.version:
            return False
        if self._mode is Mode.OFF:
            adopted = GuardState(version=state.version, at=state.at, moves=state.moves)
        else:
            active = {
                signal: self._adopted(signal, alarm) for signal, alarm in state.active.items()
            }
            adopted = replace(state, above_since={}, active=active)
        controls = self._controls(adopted, state.controls.reason)
        if controls != state.controls:
            adopted = replace(adopted, version=state.version + 1)
            controls = replace(controls, version=adopted.version)
        self._state = replace(adopted, controls=controls)
        return True

    def hold(self, by: str, now: float) -> list[Move]:
        """The rung stays as it is, until ``release``."""
        state = self._looked_at(by, now)
        if state.held_by == by:
            return []
        return self._by_hand(replace(state, held_by=by), MoveKind.HOLD, by)

    def release(self, by: str, now: float) -> list[Move]:
        """Nothing is set by hand any more, and the rung moves by itself."""
        state = self._looked_at(by, now)
        if not state.held_by:
            raise InvalidRequest("nothing is held or set by hand", param="release")
        return self._by_hand(replace(state, held_by="", overrides={}), MoveKind.RELEASE, by)

    def set(
        self, by: str, now: float, rung: Rung | None, overrides: Mapping[str, object]
    ) -> list[Move]:
        """Put a rung or fields of Controls in force, and hold them.

        Args:
            by: name of who does it.
            now: seconds of the wall clock.
            rung: any, for this is a person's word; None: the present one.
            overrides: fields by name, as JSON has them; beside those that were set before.
        """
        state = self._looked_at(by, now)
        checked = checked_overrides(overrides, self._base)
        if rung is None and not checked:
            raise InvalidRequest("neither a rung nor a field of Controls is given", param="rung")
        state = replace(state, held_by=by, overrides={**state.overrides, **checked})
        if rung is not None and rung != state.rung:
            state = _placed(state, rung, None)
        return self._by_hand(state, MoveKind.SET, by)

    def approve(self, by: str, now: float) -> list[Move]:
        """The rung that waits for a person's word is entered."""
        state = self._looked_at(by, now)
        if state.waiting_for is None:
            raise InvalidRequest("no rung waits for a person's word", param="approve")
        signal = loudest(state)
        approved = _placed(state, state.waiting_for, signal)
        return self._by_hand(approved, MoveKind.APPROVE, by, signal)

    def _looked_at(self, by: object, now: float) -> GuardState:
        """The state for a person to change, who has a name."""
        if self._mode is Mode.OFF:
            raise InvalidRequest("the Guard is off", param="mode")
        if not (isinstance(by, str) and by.isprintable() and by.strip() and len(by) <= MOST_NAME):
            raise InvalidRequest(
                f"by: expected a name of 1 to {MOST_NAME} printable characters", param="by"
            )
        return at(self._state, now)

    def _by_hand(
        self, state: GuardState, kind: MoveKind, by: str, signal: Signal | None = None
    ) -> list[Move]:
        return [self._record(Change(state, kind, signal), {}, by)]

    def _record(self, change: Change, readings: Readings, by: str = "") -> Move:
        """The change comes into force, as a new version."""
        before, after, signal = self._state, change.state, change.signal
        kind, acts = change.kind, self._mode is Mode.ACT
        is_call = kind in (MoveKind.FREEZE, MoveKind.WAIT) or (
            kind is MoveKind.UP and after.rung >= Rung.PAGE
        )
        move = Move(
            at=after.at,
            version=before.version + 1,
            kind=kind,
            before=before.rung,
            after=after.rung,
            by=by,
            shadow=not acts,
            what=what_changes(kind, before, after),
            calls=acts and is_call,
        )
        if signal is not None:
            reading = readings.get(signal)
            move = replace(
                move,
                signal=signal.value,
                value=None if reading is None else reading.value,
                threshold=self._threshold(signal, kind),
                where="" if reading is None else reading.where,
                owner=self._policy.signals[signal].owner,
            )
        moves = before.moves
        if moves and moves[-1].kind is kind is MoveKind.ADJUST:
            moves = moves[:-1]
        after = replace(after, version=move.version, moves=(*moves, move)[-MOST_MOVES:])
        self._state = replace(after, controls=self._controls(after, reason(move)))
        return move

    def _threshold(self, signal: Signal, kind: MoveKind) -> float:
        """That was passed: the one to leave by, where something is over."""
        threshold, share = self._policy.signals[signal].threshold, self._policy.ladder.leave_share
        if kind not in (MoveKind.DOWN, MoveKind.THAW):
            return threshold
        return threshold / share if signal is Signal.STEPS_LEFT else threshold * share

    def _controls(self, state: GuardState, why: str) -> Controls:
        if self._mode is Mode.ACT:
            return replace(controls_of(state, self._base, self._policy.ladder), reason=why)
        return replace(self._base, version=state.version)

    def _adopted(self, signal: Signal, alarm: Alarm) -> Alarm:
        """Asks for no more than this policy lets it."""
        most = self._policy.signals[signal].climbs_to or Rung.NORMAL
        return replace(alarm, asks=min(alarm.asks, most), calm_since=None)


def _placed(state: GuardState, rung: Rung, signal: Signal | None) -> GuardState:
    """On a rung by a person's word, whatever was before."""
    return replace(
        state,
        rung=rung,
        moved_at=state.at,
        fell_at=None,
        raised_by=signal,
        waiting_for=None,
        admit=state.admit if rung >= Rung.CUT_ADMISSION else 1.0,
    )
