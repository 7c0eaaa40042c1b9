"""Runs in simulated time: everybody is answered, arms differ, planted faults show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest

from chairlift.cluster.guard_state import Rung
from chairlift.evaluation.study_run import Fate, Run
from chairlift.evaluation.study_targets import open_target
from chairlift.evaluation.study_work import draw
from support.study_plans import DRAWN, plan_of, workload

HEAVY = {"load": workload(DRAWN | {"rate": 100.0, "tenants": {"a": 1.0, "b": 1.0}}, requests=80)}
LIGHT = {"load": workload(DRAWN | {"rate": 1.0}, requests=20)}


def runs_of(
    arms: Mapping[str, Any], workloads: Mapping[str, Any] = HEAVY, **fields
) -> dict[str, Run]:
    plan = plan_of(dict(arms), dict(workloads), **fields)
    with open_target(plan) as runs:
        asked = draw(plan, "load", 0, runs.vocab_size, None)
        return {
            name: runs.run(name, "load", 0, order, asked) for order, name in enumerate(plan.arms)
        }


def first_tokens(run: Run) -> dict[str, float]:
    """Mean seconds to the first token, by tenant."""
    names = {each.tenant for each in run.outcomes}
    return {
        name: fmean(e.first_token_s or 0.0 for e in run.outcomes if e.tenant == name)
        for name in names
    }


def test_everybody_is_answered_in_full_and_a_run_repeats_itself() -> None:
    runs = runs_of({"one": {}, "again": {}, "other": {"batching": "static"}})
    for run in runs.values():
        assert run.simulated
        assert {each.fate for each in run.outcomes} == {Fate.COMPLETED}
        assert all(len(each.tokens_s) == each.asked for each in run.outcomes)
        assert [each.number for each in run.outcomes] == list(range(80))
    assert runs["one"].outcomes == runs["again"].outcomes
    assert runs["other"].seconds > runs["one"].seconds


def test_alone_a_request_takes_what_it_should() -> None:
    target = {"kind": "simulated", "noise": 0.0}
    (run,) = runs_of({"one": {}}, {"load": workload(requests=1)}, target=target).values()
    assert run.outcomes[0].slowdown == pytest.approx(1.0)


def test_shares_and_rides_of_several_replicas_agree() -> None:
    (run,) = runs_of({"one": {}}, target={"kind": "simulated", "replicas": 2}).values()
    assert {ride.seat for ride in run.rides} == set(range(8))
    assert {ride.number for ride in run.rides} == set(range(80))
    ridden = sum(ride.end_s - ride.begin_s for ride in run.rides)
    assert run.use.seats == pytest.approx(ridden / 8 / run.seconds, rel=0.01)
    for seat in range(8):
        rides = sorted((r.begin_s, r.end_s) for r in run.rides if r.seat == seat)
        assert all(before[1] <= after[0] for before, after in pairwise(rides))
    assert 0 < (run.use.budget or 0) < 1 and 0 < (run.use.kv or 0) <= 1


def test_clients_that_gave_up_are_let_go_in_queues_and_in_seats() -> None:
    tired = {"load": dict(HEAVY["load"], gives_up_after_s=0.5)}
    (run,) = runs_of({"one": {}}, tired).values()
    fates = {each.fate for each in run.outcomes}
    assert fates == {Fate.COMPLETED, Fate.GAVE_UP}
    for each in run.outcomes:
        if each.fate is Fate.GAVE_UP:
            assert each.end_to_end_s == pytest.approx(0.5) and not each.tokens_s
        else:
            assert (each.first_token_s or 0.0) <= 0.5


def test_a_seat_given_away_late_and_a_slower_step_cost_time() -> None:
    runs = runs_of(
        {"sound": {}, "late": {"planted": "refill_late"}, "slow": {"planted": "slower_step"}},
        target={"kind": "simulated", "noise": 0.0},
    )
    assert runs["late"].seconds > 1.02 * runs["sound"].seconds
    assert (runs["late"].use.seats or 0) < (runs["sound"].use.seats or 0)
    assert runs["slow"].seconds == pytest.approx(1.05 * runs["sound"].seconds, rel=0.02)


def test_the_first_tenant_by_name_is_served_before_others_with_double_weight() -> None:
    runs = runs_of({"sound": {}, "doubled": {"planted": "double_weight"}})
    sound, doubled = first_tokens(runs["sound"]), first_tokens(runs["doubled"])
    assert doubled["a"] / doubled["b"] < 0.9 * sound["a"] / sound["b"]


def test_a_slow_generator_lags_and_its_clients_wait_from_when_they_wanted_to_send() -> None:
    runs = runs_of({"sound": {}, "slow": {"planted": "slow_generator"}}, LIGHT)
    lags = {
        name: [e.sent_s - e.intended_s for e in run.outcomes if e.sent_s is not None]
        for name, run in runs.items()
    }
    assert max(lags["sound"]) == pytest.approx(0.0, abs=1e-9)
    assert max(lags["slow"]) == pytest.approx(19 * 0.005)
    assert first_tokens(runs["slow"])["all"] > first_tokens(runs["sound"])["all"] + 0.02


def test_the_guard_moves_where_it_may() -> None:
    burst = workload(DRAWN | {"rate": 100.0, "output": "uniform:16,32"}, requests=300)
    runs = runs_of({"off": {}, "act": {"guard": "act"}}, {"load": burst})
    assert runs["off"].moves == ()
    at_s, rung = runs["act"].moves[0]
    assert 1.0 <= at_s <= runs["act"].seconds and rung in {each.name.lower() for each in Rung}
    refused = [each for each in runs["act"].outcomes if each.fate is Fate.REFUSED]
    assert all(each.why for each in refused)


def test_prefixes_in_common_are_computed_once() -> None:
    source = {"kind": "adversary", "name": "cold_under_hot", "rate": 20, "prompt": 60, "output": 2}
    plan = plan_of({"one": {}}, {"load": workload(source)})
    with open_target(plan) as runs:
        asked = draw(plan, "load", 0, runs.vocab_size, None)
        alike = runs.run("one", "load", 0, 0, asked)
        unlike = tuple(replace(e, prompt=tuple(t + e.number for t in e.prompt)) for e in asked)
        other = runs.run("one", "load", 0, 1, unlike)
    assert (alike.use.budget or 0) < 0.7 * (other.use.budget or 0)
