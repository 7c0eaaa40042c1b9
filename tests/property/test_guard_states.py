"""Hours of simulated time, with readings that mean no good."""

import itertools
import math
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.cluster.guard import MOST_MOVES
from chairlift.cluster.guard_ladder import ADJUST_EVERY_S
from chairlift.cluster.guard_state import GuardState, Mode, Move, MoveKind, Rung, Signal
from chairlift.cluster.wire import controls_from_wire, controls_to_wire
from support.watches import BASE, Watch, beyond
from support.watches import SHIPPED as POLICY

LADDER = POLICY.ladder
HOUR_S = 3600
DOWN = HOUR_S / LADDER.leave_for_s
TURNS = (
    2
    + LADDER.most_relapses
    + HOUR_S / min(LADDER.leave_for_s + LADDER.relapse_s, LADDER.longest_leave_for_s)
)
"""The bounds of ``guard_ladder``, for any hour."""

CALM_S = int(LADDER.leave_after_s(99) * (len(Rung) + 1)) + 1
"""After so long without any harm it is back, wherever it was."""


class Wave:
    """A signal that goes up and down for ever, to either side of a threshold it seeks out."""

    def __init__(self, high: float | None, low: float | None, high_s: int, low_s: int) -> None:
        self._values = (high, low)
        self._high_s = high_s
        self._period_s = high_s + low_s

    def excess(self, second: int) -> float | None:
        return self._values[second % self._period_s >= self._high_s]


bad = st.sampled_from([1.0, 1.01, 1.3, 3.0, 50.0, math.inf])
any_excess = st.sampled_from([None, math.nan, 0.0, 0.5, 0.79, 0.8, 0.81, 0.99, 1.0, 2.0])
spans = st.one_of(st.integers(1, 30), st.sampled_from([59, 60, 61, 62, 120, 240, 301, 480, 960]))
waves = st.builds(Wave, bad, any_excess, spans, spans)
weather = st.dictionaries(st.sampled_from(Signal), waves, min_size=1, max_size=6)


def values(waves: Mapping[Signal, Wave], second: int) -> dict[Signal, float]:
    found = {signal: wave.excess(second) for signal, wave in waves.items()}
    return {
        signal: beyond(signal, excess, POLICY)
        if excess or signal is not Signal.STEPS_LEFT
        else math.inf
        for signal, excess in found.items()
        if excess is not None
    }


def most_within_an_hour(moves: Iterable[Move]) -> int:
    times = [move.at for move in moves]
    return max((sum(at <= each < at + HOUR_S for each in times) for at in times), default=0)


def turns(moves: Iterable[Move]) -> Iterator[Move]:
    rungs = [move for move in moves if move.kind in (MoveKind.UP, MoveKind.DOWN)]
    for before, after in itertools.pairwise(rungs):
        if (before.kind, after.kind) == (MoveKind.DOWN, MoveKind.UP):
            yield after


def check_bounds(moves: list[Move]) -> None:
    def of_kind(kind: MoveKind) -> list[Move]:
        return [move for move in moves if move.kind is kind]

    assert most_within_an_hour(of_kind(MoveKind.DOWN)) <= DOWN
    assert most_within_an_hour(of_kind(MoveKind.UP)) <= DOWN + Rung.STOP
    assert most_within_an_hour(turns(moves)) <= TURNS
    for kind in (MoveKind.WAIT, MoveKind.FREEZE, MoveKind.THAW):
        assert most_within_an_hour(of_kind(kind)) <= DOWN + 1
    assert most_within_an_hour(of_kind(MoveKind.ADJUST)) <= HOUR_S / ADJUST_EVERY_S


def check_step(before: GuardState, after: GuardState, moves: list[Move]) -> None:
    """Whatever is done in one step keeps to the rules."""
    assert len(moves) <= 1
    if not moves:
        assert (
            replace(
                before,
                at=after.at,
                above_since=after.above_since,
                active=after.active,
                relapses=after.relapses,
                fell_at=after.fell_at,
                waiting_for=after.waiting_for,
            )
            == after
        )
        return
    (move,) = moves
    assert after.version == move.version == before.version + 1 == after.controls.version
    assert after.moves[-1] == move
    assert len(after.moves) <= MOST_MOVES
    assert (move.before, move.after) == (before.rung, after.rung)
    assert move.owner == POLICY.signals[Signal(move.signal)].owner
    assert move.what
    if move.kind is MoveKind.UP:
        assert after.rung > before.rung
        assert after.rung <= max(POLICY.signals[signal].climbs_to or 0 for signal in after.active)
        assert not LADDER.approval & {Rung(rung) for rung in range(move.before + 1, move.after + 1)}
        assert Signal(move.signal) in after.active
        assert move.calls == (move.after >= Rung.PAGE)
    elif move.kind is MoveKind.DOWN:
        assert after.rung == before.rung - 1
        assert all(alarm.asks < before.rung for alarm in after.active.values())
    else:
        assert after.rung == before.rung
    if before.frozen:
        assert move.kind is MoveKind.THAW
    controls = after.controls
    assert controls_from_wire(controls_to_wire(controls)) == controls
    assert 1 <= controls.token_budget <= BASE.token_budget
    assert 1 <= controls.max_sequences <= BASE.max_sequences
    assert LADDER.least_admit <= controls.admit <= 1
    assert len(controls.reason) <= 200
    assert controls.reason.isprintable()


def live(watch: Watch, waves: Mapping[Signal, Wave], seconds: int) -> list[Move]:
    """Checked at each step."""
    moves: list[Move] = []
    for second in range(seconds):
        before = watch.guard.state
        done = watch.see(values(waves, second))
        check_step(before, watch.guard.state, done)
        moves += done
    return moves


def back_to_normal(watch: Watch) -> list[Move]:
    """It gets there when nothing is wrong any more."""
    moves: list[Move] = []
    for _ in range(0, CALM_S, 10):
        if watch.rung == Rung.NORMAL and not watch.guard.state.frozen:
            return moves
        watch.now += 9
        moves += watch.see({})
    assert watch.rung == Rung.NORMAL
    assert not watch.guard.state.frozen
    return moves


@settings(max_examples=15, deadline=None)
@given(weather, st.integers(600, 2 * HOUR_S))
def test_whatever_the_signals_do_moves_are_bounded_and_it_recovers(
    waves: dict[Signal, Wave], seconds: int
):
    watch = Watch(policy=POLICY)
    moves = live(watch, waves, seconds)
    moves += back_to_normal(watch)
    check_bounds(moves)
    versions = [move.version for move in moves]
    assert versions == list(range(1, len(moves) + 1))
    assert replace(watch.guard.state.controls, version=0, reason="") == BASE
    assert watch.guard.state.waiting_for is None
    size = len(pickle.dumps(watch.guard.state))
    assert size < 32_000


@settings(max_examples=6, deadline=None)
@given(
    st.sampled_from([signal for signal in Signal if signal is not Signal.CONTRADICTION]),
    st.sampled_from([0.0, 0.8, 0.99]),
    st.integers(0, 6),
    st.sampled_from([0, 1, 240, 301, 601]),
)
def test_an_adversary_who_knows_the_rules_is_bounded_too(
    signal: Signal, rest: float, floor: int, patience_s: int
):
    """It lets the Guard fall to a rung, waits until that is no relapse, and raises it again."""
    watch, moves = Watch(policy=POLICY), list[Move]()
    top = POLICY.signals[signal].climbs_to or 0
    harm, calm = {signal: beyond(signal, 2, POLICY)}, {signal: beyond(signal, rest or 0.01, POLICY)}
    for _ in range(2 * HOUR_S):
        state = watch.guard.state
        rests_s = watch.now - state.moved_at
        raising = state.fell_at is None and state.rung < top
        moves += watch.see(
            harm if raising or (state.rung <= floor and rests_s >= patience_s) else calm
        )
    check_bounds(moves)


class Person:
    """Does something by hand now and then, sensible or not."""

    def __init__(self, acts: Iterable[tuple[str, Rung, int]]) -> None:
        self._acts = list(acts)

    def act(self, watch: Watch) -> list[Move]:
        if not self._acts:
            return []
        act, rung, _ = self._acts.pop(0)
        guard, now, state = watch.guard, watch.now, watch.guard.state
        if act == "set":
            return guard.set("ann", now, rung, {"admit": 0.5} if rung % 2 else {})
        if act == "release" and state.held_by:
            return guard.release("ann", now)
        if act == "approve" and state.waiting_for is not None:
            return guard.approve("ann", now)
        if act == "restart":
            successor = Watch(policy=POLICY)
            if state.version:
                assert successor.guard.adopt(pickle.loads(pickle.dumps(state)))
                assert successor.guard.state.controls == state.controls
            watch.guard = successor.guard
        return guard.hold("ann", now) if act == "hold" else []

    @property
    def waits_s(self) -> list[int]:
        return [seconds for _, _, seconds in self._acts]


acts = st.tuples(
    st.sampled_from(["hold", "release", "set", "approve", "restart"]),
    st.sampled_from(Rung),
    st.integers(1, 200),
)


@settings(max_examples=40, deadline=None)
@given(weather, st.lists(acts, max_size=8))
def test_with_people_and_restarts_versions_grow_and_there_is_always_a_way_back(
    waves: dict[Signal, Wave], acts: list[tuple[str, Rung, int]]
):
    watch, person, versions = Watch(policy=POLICY), Person(acts), [0]
    for seconds in person.waits_s:
        for second in range(seconds):
            held, rung = watch.guard.state.held_by, watch.rung
            versions += [move.version for move in watch.see(values(waves, second))]
            assert not held or watch.rung == rung
        versions += [move.version for move in person.act(watch)]
        state = watch.guard.state
        assert state.controls.version == state.version
        assert state.controls.by_person == bool(state.held_by)
        assert controls_from_wire(controls_to_wire(state.controls)) == state.controls
    assert all(a < b for a, b in itertools.pairwise(versions))
    if watch.guard.state.held_by:
        watch.guard.release("ann", watch.now)
    if watch.rung == Rung.STOP:
        watch.guard.set("ann", watch.now, Rung.PAGE, {})
        watch.guard.release("ann", watch.now)
    back_to_normal(watch)


@settings(max_examples=10, deadline=None)
@given(weather, st.integers(60, 900))
def test_shadow_decides_the_same_and_changes_nothing(waves: dict[Signal, Wave], seconds: int):
    acting, shadow = Watch(policy=POLICY), Watch(Mode.SHADOW, policy=POLICY)
    for second in range(seconds):
        done, said = (watch.see(values(waves, second)) for watch in (acting, shadow))
        assert [(move.kind, move.after) for move in done] == [
            (move.kind, move.after) for move in said
        ]
        state = shadow.guard.state
        assert state.controls == replace(BASE, version=state.version)


@settings(max_examples=10, deadline=None)
@given(weather, st.lists(st.integers(-10_000, 10_000), max_size=6))
def test_a_clock_that_jumps_leaves_no_dead_end(waves: dict[Signal, Wave], jumps: list[int]):
    watch = Watch(policy=POLICY)
    for jump in jumps:
        for second in range(100):
            watch.see(values(waves, second))
        watch.now += jump
    back_to_normal(watch)
