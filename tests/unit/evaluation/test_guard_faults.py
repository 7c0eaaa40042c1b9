"""The table of planted faults: what counts as an answer, and what does not."""

from __future__ import annotations

from dataclasses import replace

from chairlift.cluster.guard_policy import load_policy
from chairlift.cluster.guard_state import Rung, Signal
from chairlift.evaluation.guard_faults import FAULTS, Found, alone, table

POLICY = load_policy()
GOOD = Found(
    planted=FAULTS[0],
    terms=POLICY.signals[Signal.OFFERED_LOAD],
    seen_s=4.0,
    moved_s=5.0,
    owner="capacity",
    before=0,
    first=Signal.OFFERED_LOAD,
    reached_s=5.0,
    highest=Rung.CUT_ADMISSION,
)


def test_each_signal_has_a_fault() -> None:
    assert [planted.signal for planted in FAULTS] == list(Signal)


def test_an_answer_is_in_time_by_the_owner_and_not_before_the_fault() -> None:
    assert GOOD.holds
    for bad in (
        replace(GOOD, moved_s=None),
        replace(GOOD, moved_s=GOOD.terms.within_s + 1),
        replace(GOOD, owner="somebody"),
        replace(GOOD, before=1),
        replace(GOOD, reached_s=None),
    ):
        assert not bad.holds


def test_alone_leaves_one_signal_as_it_is_and_the_others_for_ever_quiet() -> None:
    policy = alone(POLICY, Signal.KV_USE)
    assert policy.signals[Signal.KV_USE] == POLICY.signals[Signal.KV_USE]
    assert all(
        terms.for_s > 1e6 for signal, terms in policy.signals.items() if signal != Signal.KV_USE
    )


def test_the_table_says_which_do_not_hold() -> None:
    rows = table([GOOD, replace(GOOD, moved_s=None)]).splitlines()
    assert rows[1].endswith("holds")
    assert rows[2].endswith("DOES NOT HOLD")
    assert "never" in rows[2]
