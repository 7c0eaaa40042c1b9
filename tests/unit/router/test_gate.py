import random

import pytest

from chairlift.cluster.errors import Overloaded
from chairlift.cluster.guard_state import GuardState
from chairlift.cluster.protocol import Controls, Priority, Request, SamplingParams
from chairlift.router.gate import PAUSE_S, Gate


def gate_with(version: int = 1, **controls) -> Gate:
    gate = Gate()
    assert gate.obey(GuardState(version, controls=Controls(version, **controls)))
    return gate


def check(gate: Gate, tenant: str = "t", now: float = 0.0, **fields) -> str:
    """How the gate refuses; "" if it does not."""
    try:
        gate.check(Request("r", (1,), SamplingParams(1), tenant=tenant, **fields), now)
    except Overloaded as error:
        assert 1.0 <= error.retry_after_s <= 60.0
        return error.code
    return ""


def test_without_a_state_everybody_gets_in():
    gate = Gate()
    assert gate.guard is None and gate.controls == Controls()
    assert not any(check(gate, priority=each) for each in Priority)


def test_only_newer_states_are_obeyed():
    gate = gate_with(3, admit=0.0)
    for version in (1, 3):
        assert not gate.obey(GuardState(version, controls=Controls(version)))
    assert gate.guard.version == 3 and check(gate) == "service_stopping"
    assert gate.obey(GuardState(4, controls=Controls(4)))
    assert check(gate) == ""


def test_a_guard_that_never_moved_changes_nothing():
    gate = Gate()
    assert not gate.obey(GuardState(controls=Controls(admit=0.0)))
    assert check(gate) == ""


def test_classes_below_the_lowest_are_refused():
    gate = gate_with(lowest=Priority.STANDARD)
    assert [check(gate, priority=each) for each in Priority] == ["", "", "best_effort_refused"]


@pytest.mark.parametrize("share", [0.9, 0.5, 1 / 3, 0.1, 0.07])
def test_of_each_tenants_requests_exactly_the_share_gets_in(share):
    """In every stretch from the first on, not only in the end, and whoever comes between."""
    gate, rng = gate_with(admit=share), random.Random(1)
    seen, got_in = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
    for number in range(3000):
        tenant = rng.choice("aaaaabbc")
        refusal = check(gate, tenant, now=number * 0.01)
        assert refusal in ("", "admission_cut")
        seen[tenant] += 1
        got_in[tenant] += refusal == ""
        assert abs(got_in[tenant] - share * seen[tenant]) < 1.0 + 1e-2
    assert all(got_in.values())


def test_ten_tenths_are_one_whole():
    """Guards against sums of floating-point shares, which fall short."""
    gate = gate_with(admit=0.1)
    assert [check(gate) == "" for _ in range(1001)].count(True) == 101


def test_a_refused_class_costs_its_tenant_nothing_of_its_share():
    gate = gate_with(admit=0.5, lowest=Priority.STANDARD)
    assert [check(gate), check(gate, priority=Priority.BATCH)] == ["", "best_effort_refused"]
    assert [check(gate), check(gate)] == ["admission_cut", ""]


def test_the_first_after_a_pause_gets_in_however_small_the_share():
    gate = gate_with(admit=1e-9)
    assert check(gate, now=0.0) == ""
    assert check(gate, now=PAUSE_S - 1.0) == "admission_cut"
    assert check(gate, now=2 * PAUSE_S - 2.0) == "admission_cut", "there was no pause"
    assert check(gate, now=3 * PAUSE_S) == ""


def test_tenants_that_have_gone_are_forgotten():
    gate = gate_with(admit=0.5)
    for number in range(1000):
        check(gate, f"t{number}", now=number * 1.0)
    assert len(gate._accounts) <= PAUSE_S + 1


def test_what_is_owed_outlives_a_change_of_the_share_and_not_its_end():
    gate = gate_with(1, admit=0.5)
    assert [check(gate) for _ in range(2)] == ["", "admission_cut"]
    gate.obey(GuardState(2, controls=Controls(2, admit=0.6)))
    assert check(gate) == ""
    gate.obey(GuardState(3, controls=Controls(3)))
    assert not gate._accounts


def test_while_shares_are_cut_only_those_get_in_who_can_be_served_in_time():
    """However often they come again, which a share of what comes cannot see."""
    gate = gate_with(admit=0.9)
    for predicted_s in (None, 0.0, 1.0):
        gate.check_wait(predicted_s, target_s=2.0)
    with pytest.raises(Overloaded, match=r"in about 4\.5 s.*within 1 s") as refused:
        gate.check_wait(4.5, target_s=2.0)
    assert (refused.value.code, refused.value.retry_after_s) == ("admission_cut", 3.5)


def test_nobody_is_asked_how_long_they_would_wait_where_nothing_is_cut():
    gate_with(admit=1.0, demote_late=True).check_wait(100.0, target_s=2.0)
    Gate().check_wait(100.0, target_s=2.0)
