import dataclasses
import pickle

import pytest

from chairlift.cluster.errors import InvalidRequest
from chairlift.cluster.guard import MOST_MOVES, Guard
from chairlift.cluster.guard_state import (
    Alarm,
    GuardState,
    Mode,
    MoveKind,
    Reading,
    Rung,
    Signal,
)
from chairlift.cluster.protocol import Batching, Controls, Priority
from support.watches import BASE, POLICY, T0, Watch, on

LEAVE_S = 60


def test_people_can_act_while_it_is_frozen():
    watch = Watch()
    watch.see({Signal.CONTRADICTION: 0.9}, 12)
    watch.guard.set("ann", watch.now, Rung.STATIC, {})
    assert watch.guard.state.controls.batching is Batching.STATIC


def test_a_held_rung_stays_whatever_the_signals_say():
    watch = Watch()
    (move,) = watch.guard.hold("ann", watch.now)
    assert (move.kind, move.by, move.calls) == (MoveKind.HOLD, "ann", False)
    assert watch.see({Signal.QUEUE_DELAY: 1.0}, 600) == []
    assert watch.guard.hold("ann", watch.now) == [], "it is held already"
    (move,) = watch.guard.release("bob", watch.now)
    assert (move.kind, move.by) == (MoveKind.RELEASE, "bob")
    (move,) = watch.see({Signal.QUEUE_DELAY: 1.0})
    assert (move.kind, move.after) == (MoveKind.UP, Rung.REFUSE_BEST_EFFORT)
    watch.guard.hold("ann", watch.now)
    assert watch.see({}, 600) == []
    watch.guard.release("ann", watch.now)
    assert [move.kind for move in watch.see({})] == [MoveKind.DOWN], "it has been calm for long"


def test_what_a_person_sets_is_in_force_until_it_is_released():
    watch = Watch()
    (move,) = watch.guard.set("ann", watch.now, None, {"token_budget": 100, "hedging": False})
    assert (move.kind, move.by, move.before, move.after) == (MoveKind.SET, "ann", 0, 0)
    assert "token_budget = 100" in move.what
    watch.guard.set("bob", watch.now, Rung.STATIC, {"batching": "continuous", "lowest": "standard"})
    state = watch.guard.state
    assert state.held_by == "bob"
    assert state.controls == dataclasses.replace(
        BASE,
        version=2,
        token_budget=100,
        max_sequences=28,
        hedging=False,
        lowest=Priority.STANDARD,
        demote_late=True,
        reserve=True,
        affinity=False,
        by_person=True,
        reason="set by bob → static",
    )
    watch.guard.release("ann", watch.now)
    assert watch.guard.state.controls.token_budget == 256
    assert watch.guard.state.controls.batching is Batching.STATIC
    assert not watch.guard.state.controls.by_person


def test_a_share_that_a_person_sets_is_not_adjusted():
    watch = Watch()
    watch.guard.set("ann", watch.now, Rung.CUT_ADMISSION, {"admit": 0.4})
    assert watch.see({Signal.OFFERED_LOAD: 9.0}, 60) == []
    assert watch.guard.state.controls.admit == 0.4


def test_a_cut_that_a_person_sets_follows_the_load():
    watch = Watch()
    watch.guard.set("ann", watch.now, Rung.CUT_ADMISSION, {})
    (move,) = watch.see({Signal.OFFERED_LOAD: 1.8}, 60)
    assert move.kind is MoveKind.ADJUST
    assert watch.guard.state.controls.admit == 0.5


@pytest.mark.parametrize("by", ["", "  ", "a\nb", "x" * 65, None, 7])
def test_a_person_has_a_name(by: str):
    watch = Watch()
    for act in (watch.guard.hold, watch.guard.release, watch.guard.approve):
        with pytest.raises(InvalidRequest) as caught:
            act(by, watch.now)
        assert caught.value.param == "by"
    with pytest.raises(InvalidRequest) as caught:
        watch.guard.set(by, watch.now, Rung.PAGE, {})
    assert caught.value.param == "by"
    assert watch.guard.state.version == 0


def test_acts_that_make_no_sense_are_refused():
    watch = Watch()
    with pytest.raises(InvalidRequest) as caught:
        watch.guard.release("ann", watch.now)
    assert caught.value.param == "release"
    with pytest.raises(InvalidRequest) as caught:
        watch.guard.set("ann", watch.now, None, {})
    assert caught.value.param == "rung"


def test_in_shadow_it_decides_and_records_and_does_not_act():
    shadow, acting = Watch(Mode.SHADOW), Watch()
    values = {Signal.BURN_RATE: 20.0}
    said, done = shadow.see(values, 400), acting.see(values, 400)
    assert [dataclasses.replace(move, shadow=False, calls=False) for move in said] == [
        dataclasses.replace(move, calls=False) for move in done
    ]
    assert all(move.shadow and not move.calls for move in said)
    state = shadow.guard.state
    assert state.rung == acting.rung
    assert state.controls == dataclasses.replace(BASE, version=state.version)


def test_a_guard_that_is_off_does_nothing():
    watch = Watch(Mode.OFF)
    assert watch.see({Signal.BURN_RATE: 20.0, Signal.CONTRADICTION: 9.0}, 400) == []
    assert watch.guard.state == GuardState(controls=BASE)
    with pytest.raises(InvalidRequest, match="off"):
        watch.guard.hold("ann", watch.now)


def test_a_new_guard_goes_on_from_what_routers_obey():
    old = Watch()
    values = {Signal.QUEUE_DELAY: 1.0, Signal.OFFERED_LOAD: 1.8}
    old.see(values, 9)
    old.guard.set("ann", old.now, None, {"reserve": True})
    new = Watch()
    new.now = old.now
    state = pickle.loads(pickle.dumps(old.guard.state))
    assert new.guard.adopt(state)
    assert new.guard.state.controls == old.guard.state.controls
    assert new.guard.state.moves == old.guard.state.moves
    assert not new.guard.adopt(state), "it is not newer any more"
    assert not new.guard.adopt(dataclasses.replace(state, version=1))
    assert new.guard.state.version == state.version
    new.guard.release("ann", new.now)
    new.see(values, 30)
    assert new.rung == Rung.CUT_ADMISSION
    assert new.guard.state.moves[-1].version == new.guard.state.version > state.version


def test_what_was_counted_before_a_restart_is_counted_anew():
    old = Watch()
    old.see({Signal.STEPS_LEFT: 20}, 3)
    old.see({Signal.STEPS_LEFT: 1000}, LEAVE_S - 1)
    new = Watch()
    new.now = old.now
    new.guard.adopt(old.guard.state)
    assert new.see({Signal.STEPS_LEFT: 1000, Signal.KV_USE: 0.99}, 5) == []
    assert new.see({Signal.STEPS_LEFT: 1000}, LEAVE_S - 5) == []
    assert len(new.see({Signal.STEPS_LEFT: 1000}, 1)) == 1


def test_a_single_reading_after_a_restart_is_no_reason():
    old = Watch()
    old.see({Signal.KV_USE: 0.99}, 3)
    old.guard.hold("ann", old.now)
    old.guard.release("ann", old.now)
    new = Watch()
    new.now = old.now + 600
    new.guard.adopt(old.guard.state)
    assert new.see({Signal.KV_USE: 0.99}, 5) == []
    assert len(new.see({Signal.KV_USE: 0.99})) == 1


def test_under_other_settings_the_same_rung_comes_as_a_new_version():
    old = Watch()
    old.see({Signal.KV_USE: 0.99}, 8)
    smaller = Watch(base=Controls(token_budget=64, max_sequences=8))
    assert smaller.guard.adopt(old.guard.state)
    state = smaller.guard.state
    assert (state.rung, state.version) == (Rung.SMALLER_STEPS, old.guard.state.version + 1)
    assert (state.controls.token_budget, state.controls.version) == (32, state.version)
    shadow = Watch(Mode.SHADOW)
    shadow.guard.adopt(old.guard.state)
    assert shadow.guard.state.controls == dataclasses.replace(BASE, version=state.version)
    off = Watch(Mode.OFF)
    off.guard.adopt(old.guard.state)
    assert off.guard.state.controls == dataclasses.replace(BASE, version=state.version)
    assert off.rung == Rung.NORMAL


def test_an_alarm_asks_for_no_more_than_this_policy_lets_it():
    state = GuardState(version=9, active={Signal.KV_USE: Alarm(T0, Rung.STOP)}, controls=BASE)
    watch = Watch()
    watch.guard.adopt(state)
    (move,) = watch.see({Signal.KV_USE: 0.99})
    assert (move.kind, move.after) == (MoveKind.UP, Rung.RESERVE)


def test_memory_and_reasons_are_bounded():
    watch = Watch()
    where = "tenant\n" * 100
    for second in range(400):
        watch.guard.step({Signal.KV_USE: Reading(0.99, where)}, T0 + second)
        watch.guard.hold("n" * 63 + str(second % 2), T0 + second)
        assert len(watch.guard.state.controls.reason) <= 200
        assert watch.guard.state.controls.reason.isprintable()
        if second % 2:
            watch.guard.release("ann", T0 + second)
    assert len(watch.guard.state.moves) == MOST_MOVES
    versions = [move.version for move in watch.guard.state.moves]
    assert versions == list(range(versions[0], versions[0] + MOST_MOVES))


def test_the_owner_is_named_however_long_the_reason():
    watch = Watch()
    for second in range(20):
        watch.guard.step({Signal.KV_USE: Reading(0.99, "r" * 300)}, T0 + second)
    assert watch.guard.state.controls.reason.endswith(" (serving)")


def test_it_can_be_made_with_a_state_to_go_on_from():
    watch = on(Rung.PAGE)
    assert Guard(POLICY, BASE, Mode.ACT, watch.guard.state).state == watch.guard.state
