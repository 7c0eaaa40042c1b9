import dataclasses
import itertools
import math

import pytest

from chairlift.cluster.errors import InvalidRequest
from chairlift.cluster.guard_state import (
    MoveKind,
    Rung,
    Signal,
)
from support.watches import BASE, SHIPPED, T0, Watch, beyond, on

LEAVE_S = 60
CLIMBING = [signal for signal in Signal if signal is not Signal.CONTRADICTION]


@pytest.mark.parametrize("signal", CLIMBING)
def test_each_signal_asks_for_its_rung_in_time_and_names_its_owner(signal: Signal):
    watch, its = Watch(policy=SHIPPED), SHIPPED.signals[signal]
    assert watch.see({signal: beyond(signal, 0.95, SHIPPED)}, 600) == []
    (move,) = watch.see({signal: beyond(signal, 1.2, SHIPPED)}, math.ceil(its.for_s) + 1)
    assert move.kind is MoveKind.UP
    assert (move.before, move.after) == (Rung.NORMAL, its.rung)
    assert move.at - (T0 + 600) <= its.within_s
    assert (move.signal, move.owner, move.where) == (signal, its.owner, "r1")
    assert (move.value, move.threshold) == (beyond(signal, 1.2, SHIPPED), its.threshold)
    assert not move.calls
    assert not move.shadow
    assert watch.guard.state.moves == (move,)
    controls = watch.guard.state.controls
    assert controls.version == move.version == watch.guard.state.version == 1
    assert controls.reason.startswith(f"{signal} ")
    assert controls.reason.endswith(f" at r1 → {move.after.name.lower()} ({its.owner})")
    assert not controls.by_person


def test_a_signal_that_is_beyond_with_breaks_asks_for_nothing():
    watch = Watch()
    for _ in range(100):
        assert watch.see({Signal.KV_USE: 0.99}, 5) == []
        assert watch.see({Signal.KV_USE: 0.9}) == []
    for _ in range(100):
        assert watch.see({Signal.KV_USE: 0.99}, 5) == []
        assert watch.see({}) == [], "not known is no reason"
    for _ in range(100):
        assert watch.see({Signal.KV_USE: 0.99}, 5) == []
        assert watch.see({Signal.KV_USE: math.nan}) == [], "no number neither"


def test_it_goes_straight_to_the_highest_rung_that_is_asked_for():
    watch = Watch()
    (first,) = watch.see({Signal.OFFERED_LOAD: 1.1, Signal.BURN_RATE: 2, Signal.KV_USE: 0.9}, 2)
    assert (first.after, first.signal) == (Rung.DEMOTE_LATE, "burn_rate")


def test_of_signals_that_ask_for_the_same_rung_the_earliest_is_the_reason():
    watch = Watch()
    for _ in range(2):  # the other one is on its way for longer
        watch.see({Signal.OLDEST_SLOPE: 0.6})
    (move,) = watch.see({Signal.QUEUE_DELAY: 0.3, Signal.OLDEST_SLOPE: 0.6}, 4)
    assert move.signal == "queue_delay"


def test_where_a_rung_does_not_help_it_climbs_as_far_as_the_signal_goes():
    watch = Watch()
    moves = watch.see({Signal.OFFERED_LOAD: 1.3}, 120)
    assert [move.after for move in moves] == [1, 2, 3]
    assert [move.at - T0 for move in moves] == [2, 7, 12]


def test_a_signal_that_is_no_longer_beyond_does_not_climb():
    watch = Watch()
    watch.see({Signal.QUEUE_DELAY: 0.3}, 4)
    assert watch.rung == Rung.REFUSE_BEST_EFFORT
    assert watch.see({Signal.QUEUE_DELAY: 0.24}, 600) == [], "and is not over either"
    assert watch.see({Signal.QUEUE_DELAY: 0.3}, 2) == [], "and a moment says nothing"
    (move,) = watch.see({Signal.QUEUE_DELAY: 0.3})
    assert move.after == Rung.DEMOTE_LATE


def test_it_comes_down_one_rung_at_a_time_after_the_leave_time():
    watch = Watch()
    watch.see({Signal.KV_USE: 0.99, Signal.QUEUE_DELAY: 1.0}, 12)
    assert watch.rung == Rung.DEMOTE_LATE
    since = watch.now
    moves = watch.see({Signal.KV_USE: 0.76, Signal.QUEUE_DELAY: 0.2}, 600)
    assert {move.kind for move in moves} == {MoveKind.DOWN}
    assert [move.after for move in moves] == [3, 2, 1, 0]
    times = [since + 1, *(move.at for move in moves)]
    assert all(b - a == LEAVE_S for a, b in itertools.pairwise(times))
    assert {move.owner for move in moves} == {"capacity"}
    assert (moves[0].signal, moves[0].value, moves[0].threshold) == ("queue_delay", 0.2, 0.2)
    assert dataclasses.replace(watch.guard.state.controls, version=0, reason="") == BASE


def test_calm_with_a_break_is_no_calm():
    watch = Watch()
    watch.see({Signal.STEPS_LEFT: 20}, 3)
    for _ in range(20):
        assert watch.see({Signal.STEPS_LEFT: 80}, LEAVE_S - 1) == []
        assert watch.see({Signal.STEPS_LEFT: 79}) == []
    (move,) = watch.see({Signal.STEPS_LEFT: 80}, LEAVE_S + 1)
    assert move.kind is MoveKind.DOWN
    assert move.threshold == 80


def test_a_signal_that_nobody_measures_any_more_is_over():
    watch = Watch()
    watch.see({Signal.KV_USE: 0.99}, 8)
    (move,) = watch.see({}, LEAVE_S + 1)
    assert (move.kind, move.value) == (MoveKind.DOWN, None)


def test_each_relapse_doubles_the_leave_time_and_peace_forgives_them():
    """The ladder calms the signal, and each step down brings it back."""
    watch, up_for = Watch(), []
    for _ in range(7):
        watch.see({Signal.STEPS_LEFT: 20}, 2)
        up = watch.now
        while watch.rung > Rung.NORMAL:
            watch.see({Signal.STEPS_LEFT: 1000})
        up_for.append(watch.now - up)
    # Two rungs each time, the first from when the signal was calm.
    assert [round(seconds / 2) for seconds in up_for] == [60, 120, 240, 480, 960, 960, 960]
    assert watch.guard.state.relapses == 4
    watch.see({}, 16 * 300 + 1)
    assert watch.guard.state.relapses == 0


def test_page_calls_a_person_and_what_is_above_waits_for_one():
    watch, burning = Watch(), {Signal.BURN_RATE: 20.0}
    moves = watch.see(burning, 4 * 60 + 10)
    assert [move.after for move in moves] == [4, 5, 6, 7, 8]
    assert [move.calls for move in moves] == [False] * 4 + [True]
    moves = watch.see(burning, 600)
    assert [(move.kind, move.after, move.calls) for move in moves] == [(MoveKind.WAIT, 8, True)]
    assert watch.guard.state.waiting_for is Rung.ROLL_BACK
    (move,) = watch.guard.approve("ann", watch.now)
    assert (move.kind, move.by, move.after) == (MoveKind.APPROVE, "ann", Rung.ROLL_BACK)
    assert (move.signal, move.owner) == ("burn_rate", "serving")
    assert watch.guard.state.waiting_for is None
    (move,) = watch.see(burning, 65)
    assert move.kind is MoveKind.WAIT
    watch.guard.approve("ann", watch.now)
    assert watch.guard.state.controls.admit == 0
    assert watch.see({}, 10_000) == [], "who has ended the service has to start it"
    watch.guard.set("bob", watch.now, Rung.NORMAL, {})
    assert watch.guard.state.controls.admit == 1


def test_a_wait_lapses_with_its_reason():
    watch = Watch()
    watch.see({Signal.BURN_RATE: 20}, 400)
    watch.see({Signal.BURN_RATE: 0.5}, LEAVE_S + 1)
    assert watch.guard.state.waiting_for is None
    with pytest.raises(InvalidRequest) as caught:
        watch.guard.approve("ann", watch.now)
    assert caught.value.param == "approve"


def test_a_contradiction_freezes_until_it_is_over_and_no_longer():
    watch = Watch()
    watch.see({Signal.QUEUE_DELAY: 1.0}, 4)
    (move,) = watch.see({Signal.CONTRADICTION: 0.9}, 12)
    assert (move.kind, move.owner, move.calls) == (MoveKind.FREEZE, "telemetry", True)
    rung, version = watch.rung, watch.guard.state.version
    wrong = {Signal.CONTRADICTION: 0.9, Signal.BURN_RATE: 9.0, Signal.OFFERED_LOAD: 5.0}
    assert watch.see(wrong, 3000) == []
    assert (watch.rung, watch.guard.state.version) == (rung, version)
    (move, *others) = watch.see({Signal.CONTRADICTION: 0.1}, 2 * LEAVE_S)
    assert (move.kind, move.owner) == (MoveKind.THAW, "telemetry")
    assert others == [], "what was asked for before has to be calm anew"
    assert [move.after for move in watch.see({}, 10 * LEAVE_S)] == [2, 1, 0]


def test_a_freeze_ends_where_contradiction_is_not_measured_any_more():
    watch = Watch()
    watch.see({Signal.CONTRADICTION: 0.9}, 12)
    assert watch.guard.state.frozen
    watch.see({}, LEAVE_S + 1)
    assert not watch.guard.state.frozen


@pytest.mark.parametrize(
    ("load", "share"), [(1.8, 0.5), (1.0, 0.9), (0.5, 0.9), (0, 0.9), (1e9, 0.05), (math.inf, 0.05)]
)
def test_admission_is_cut_to_what_can_be_served(load: float, share: float):
    watch = on(Rung.RESERVE)
    watch.see({Signal.OFFERED_LOAD: load, Signal.QUEUE_DELAY: 1.0}, 8)
    assert watch.rung == Rung.CUT_ADMISSION
    assert watch.guard.state.controls.admit == pytest.approx(share)


def test_what_is_far_beyond_skips_the_rungs_that_would_come_too_late():
    shipped = SHIPPED.signals[Signal.OFFERED_LOAD]
    assert shipped.urgent is not None and shipped.urgent.rung == Rung.CUT_ADMISSION
    watch = Watch(policy=SHIPPED)
    (move,) = watch.see({Signal.OFFERED_LOAD: shipped.urgent.threshold}, 3)
    assert (move.kind, move.after) == (MoveKind.UP, Rung.CUT_ADMISSION)
    less = Watch(policy=SHIPPED)
    (move,) = less.see({Signal.OFFERED_LOAD: shipped.urgent.threshold - 0.1}, 2)
    assert move.after == shipped.rung


def test_the_share_follows_the_load_in_steps_that_are_worth_it():
    watch = on(Rung.RESERVE)
    high = {Signal.QUEUE_DELAY: 1.0}
    watch.see(high | {Signal.OFFERED_LOAD: 1.8}, 8)
    assert watch.see(high | {Signal.OFFERED_LOAD: 1.6}, 30) == [], "a little more is let be"
    assert watch.see(high, 30) == [], "not known is left as it is"
    (move,) = watch.see(high | {Signal.OFFERED_LOAD: 3.6}, 30)
    assert (move.kind, move.value) == (MoveKind.ADJUST, 3.6)
    assert move.before == move.after == Rung.CUT_ADMISSION
    assert watch.guard.state.controls.admit == 0.25
    swinging = [watch.see(high | {Signal.OFFERED_LOAD: load}) for load in [1, 9] * 30]
    assert sum(map(len, swinging)) <= 60 / 5
    assert [move.kind for move in watch.guard.state.moves].count(MoveKind.ADJUST) == 1
    watch.see(high | {Signal.OFFERED_LOAD: 0.5}, 6)
    assert watch.guard.state.controls.admit == 0.9, "the queue says that less can be served"
    watch.see({Signal.OFFERED_LOAD: 0.5}, 6)
    assert watch.guard.state.controls.admit == 1


def test_what_is_refused_does_not_come_back_as_room():
    """Offered load counts what comes: with a steady one the share stays."""
    watch = on(Rung.RESERVE)
    moves = watch.see({Signal.QUEUE_DELAY: 1.0, Signal.OFFERED_LOAD: 1.8}, 600)
    assert [move.kind for move in moves] == [MoveKind.UP]
    assert watch.guard.state.controls.admit == 0.5


def test_a_clock_that_is_set_back_stops_nothing():
    watch = Watch()
    watch.see({Signal.KV_USE: 0.99}, 5)
    watch.now -= 100_000
    (move,) = watch.see({Signal.KV_USE: 0.99}, 2)
    assert move.after == Rung.SMALLER_STEPS
    watch.see({}, 30)
    watch.now -= 100_000
    assert [move.kind for move in watch.see({}, 32)] == [MoveKind.DOWN]
    watch.now -= 100_000
    assert [move.kind for move in watch.see({}, 61)] == [MoveKind.DOWN]


def test_several_steps_up_after_one_down_are_one_relapse():
    watch = Watch()
    watch.see({Signal.STEPS_LEFT: 20}, 2)
    watch.see({}, LEAVE_S + 1)
    assert watch.rung == Rung.NO_SPECULATION
    watch.see({Signal.STEPS_LEFT: 20}, 30)
    assert watch.rung == Rung.RESERVE
    assert watch.guard.state.relapses == 1


def test_a_freeze_is_no_longer_for_what_the_ladder_went_through():
    watch = Watch()
    for _ in range(5):
        watch.see({Signal.STEPS_LEFT: 20}, 2)
        while watch.rung > Rung.NORMAL:
            watch.see({})
    assert watch.guard.state.relapses == 4
    watch.see({Signal.CONTRADICTION: 0.9}, 12)
    (move,) = watch.see({}, LEAVE_S + 1)
    assert move.kind is MoveKind.THAW


def test_after_a_freeze_a_signal_has_to_show_anew_that_its_rung_does_not_help():
    watch = Watch()
    watch.see({Signal.RECOMPUTATION: 0.5}, 4)
    assert watch.rung == Rung.RESERVE
    watch.see({Signal.CONTRADICTION: 0.9}, 300)
    while watch.guard.state.frozen:
        watch.see({Signal.RECOMPUTATION: 0.5})
    assert watch.see({Signal.RECOMPUTATION: 0.5}, 59) == []
    (move,) = watch.see({Signal.RECOMPUTATION: 0.5})
    assert move.after == Rung.CUT_ADMISSION
