"""The Guard goes on from what routers obey, and tells them what is newer."""

from collections.abc import Mapping
from typing import Any

import pytest

from chairlift.cluster.errors import InvalidRequest, Unavailable
from chairlift.cluster.guard_policy import load_policy
from chairlift.cluster.guard_state import GuardState, Mode, Reading, Rung, Signal
from chairlift.cluster.protocol import Controls
from chairlift.cluster.telemetry import Reply, Report
from chairlift.cluster.windows import Fold
from chairlift.deployments.guard_events import GuardEvents, Origin
from chairlift.deployments.guard_keeper import GuardKeeper, Order
from support.guards import NOW, guard_settings, guard_state, report


class Hub:
    """A keeper, and routers that obey it; the signals say what a test wants."""

    def __init__(self, mode: Mode = Mode.ACT, base: Controls = Controls()) -> None:
        self.now = NOW
        self.fold = Fold()
        self.readings: Mapping[Signal, Reading] = {}
        self.keeper = GuardKeeper(
            guard_settings(mode, base), self.fold, GuardEvents(Origin("chairlift", "m"), ())
        )
        self.keeper._reader = self  # type: ignore[assignment]  # a signal is what a test says
        self.states: dict[str, GuardState | None] = {}

    def read(self, fold: Fold, now: float) -> Mapping[Signal, Reading]:
        return self.readings

    def hear(self, told: Report) -> Reply:
        return self.keeper.heard(told, self.fold.put(told, self.now), self.now)

    def tell(self, *routers: str, seconds: float = 0.0) -> None:
        """All of these report, once a second, for so long; and obey."""
        for _ in range(int(seconds) + 1):
            for router in routers:
                reply = self.hear(report(router, self.states.get(router), after=int(self.now) - 1))
                if reply.acknowledged == -1:
                    reply = self.hear(report(router, self.states.get(router)))
                self.states[router] = reply.guard or self.states.get(router)
            self.now += 1.0
        self.now -= 1.0

    def view(self) -> dict[str, Any]:
        view = self.keeper.view(self.now)
        assert view is not None
        return view


def test_a_new_hub_goes_on_from_the_highest_state_that_it_is_told():
    hub = Hub()
    hub.states = {"one": guard_state(5, Rung.RESERVE), "two": guard_state(7, Rung.SMALLER_STEPS)}
    hub.tell("one")
    assert hub.keeper.view(hub.now) is None, "the other one has yet to speak"
    with pytest.raises(Unavailable, match="just started"):
        hub.keeper.act(Order("hold", "ann"), hub.now)
    hub.tell("one", "two", seconds=3)
    assert hub.view()["rung"] == "smaller_steps"
    one, two = hub.states["one"], hub.states["two"]
    assert one is not None and one == two and one.version >= 7


def test_where_nobody_knows_a_state_versions_begin_above_all_that_were_ever_told():
    hub = Hub()
    hub.tell("one", seconds=3)
    state = hub.states["one"]
    assert state is not None
    assert state.version == state.controls.version >= int(NOW)
    assert hub.view()["rung"] == "normal"


def test_a_router_that_knows_more_is_asked_for_everything_at_any_time():
    hub = Hub()
    hub.states = {"one": guard_state(5)}
    hub.tell("one", seconds=3)
    late = guard_state(hub.view()["version"] + 3, Rung.RESERVE)
    hub.states["late"] = late
    reply = hub.hear(report("late", late, after=int(hub.now)))
    assert reply == Reply(-1), "versions never go backwards"
    hub.tell("one", "late")
    assert hub.view()["rung"] == "reserve"
    hub.tell("one")
    assert hub.states["one"].version >= late.version


def test_who_obeys_the_newest_state_is_told_nothing():
    hub = Hub()
    hub.tell("one", seconds=4)
    reply = hub.hear(report("one", hub.states["one"], after=int(hub.now)))
    assert reply.guard is None


def test_signals_move_it_as_often_as_twice_a_second_and_no_oftener():
    hub = Hub()
    hub.tell("one", seconds=3)
    steps = []
    hub.keeper._guard.step = lambda readings, now: steps.append(now) or []  # type: ignore[method-assign]
    for _ in range(4):
        hub.now += 0.25
        hub.tell("one", "two", "three")
    assert len(steps) == 2


def test_a_move_reaches_every_router_and_is_counted():
    hub = Hub()
    hub.tell("one", "two", seconds=3)
    hub.readings = {Signal.OFFERED_LOAD: Reading(2.0)}
    hub.tell("one", "two", seconds=4)
    view = hub.view()
    assert view["rung_number"] >= 1
    assert view["signals"]["offered_load"]["active"] is True
    assert view["signals"]["offered_load"]["value"] == 2.0
    assert {each["signal"] for each in view["moves_total"]} == {"offered_load"}
    for state in hub.states.values():
        assert state is not None and state.rung >= Rung.NO_SPECULATION
        assert state.controls.hedging is False


def test_a_person_is_obeyed_at_once_and_the_next_report_tells_it():
    hub = Hub()
    hub.tell("one", "two", seconds=3)
    acted = hub.keeper.act(Order("set", "ann", Rung.RESERVE, {"token_budget": 128}), hub.now)
    assert (acted.state.rung, acted.state.held_by) == (Rung.RESERVE, "ann")
    assert acted.view["overrides"] == {"token_budget": 128}
    assert acted.view["controls"]["lowest"] == "standard"
    hub.tell("one", "two")
    assert hub.states["one"] == hub.states["two"] == acted.state
    released = hub.keeper.act(Order("release", "bob"), hub.now)
    assert released.view["held_by"] is None
    with pytest.raises(InvalidRequest):
        hub.keeper.act(Order("approve", "ann"), hub.now)
    with pytest.raises(InvalidRequest):
        hub.keeper.act(Order("set", "ann", None, {"token_budget": 10**6}), hub.now)


def test_a_shadow_says_and_does_nothing():
    hub = Hub(Mode.SHADOW)
    hub.tell("one", seconds=3)
    hub.readings = {Signal.OFFERED_LOAD: Reading(2.0)}
    hub.tell("one", seconds=4)
    view, state = hub.view(), hub.states["one"]
    assert (view["mode"], view["rung_number"] >= 1) == ("shadow", True)
    assert view["moves"][-1]["shadow"] is True
    assert state is not None and state.controls.hedging is True


def test_controls_follow_a_configuration_that_changed_below_a_state():
    hub = Hub(base=Controls(token_budget=64))
    hub.states = {"one": guard_state(5, Rung.SMALLER_STEPS)}
    hub.tell("one", seconds=3)
    state = hub.states["one"]
    assert state is not None and state.version > 5
    assert state.controls.token_budget == 32


def test_whatever_ails_the_guard_reports_are_answered(caplog: pytest.LogCaptureFixture):
    hub = Hub()
    hub.tell("one", seconds=3)

    def fail(readings: object, now: float) -> list[Any]:
        raise RuntimeError("a fault")

    hub.keeper._guard.step = fail  # type: ignore[method-assign]
    hub.tell("one", seconds=3)
    assert "what is in force stays" in caplog.text
    assert hub.view()["rung"] == "normal"


def test_a_clock_that_is_set_back_stops_nothing():
    hub = Hub()
    hub.tell("one", seconds=3)
    hub.readings = {Signal.OFFERED_LOAD: Reading(2.0)}
    hub.now -= 3600.0
    hub.tell("one", seconds=4)
    assert hub.view()["rung_number"] >= 1


def test_open_requests_of_all_routers_are_told():
    hub = Hub()
    hub.tell("one", "two", seconds=3)
    for router, number in (("one", 3), ("two", 4)):
        hub.hear(report(router, hub.states[router], open=number))
    assert hub.view()["open"] == 7


def test_the_shipped_policy_has_every_signal_in_the_view():
    hub = Hub()
    hub.tell("one", seconds=3)
    signals = hub.view()["signals"]
    policy = load_policy()
    assert signals.keys() == {signal.value for signal in Signal}
    for signal, its in policy.signals.items():
        assert signals[signal.value]["threshold"] == its.threshold
        assert signals[signal.value]["owner"] == its.owner


def test_while_the_service_wakes_waits_are_no_overload():
    hub = Hub()
    hub.tell("one", seconds=3)
    hub.readings = {Signal.QUEUE_DELAY: Reading(99.0), Signal.OLDEST_SLOPE: Reading(9.0)}
    for _ in range(30):
        hub.now += 1
        told = report("one", hub.states["one"], after=int(hub.now) - 1)
        hub.keeper.heard(told, hub.fold.put(told, hub.now), hub.now, wakes=True)
    assert hub.view()["rung_number"] == 0
    hub.tell("one", seconds=10)
    assert hub.view()["rung_number"] > 0
