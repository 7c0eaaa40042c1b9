from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from chairlift.evaluation.study_cautions import cautions
from chairlift.evaluation.study_plan import Plan
from chairlift.evaluation.study_run import Fate, Use
from support.study_runs import outcome, plan, run

FASTER = {"measure": "output_tokens_per_s", "over": "old", "at_least": 1.8}


def told(made: Plan, estimate: float | None = 2.0, rounds: int = 1) -> tuple[str, ...]:
    outcomes = [outcome(i, asked=asked) for i, asked in enumerate((10, 1, 10, 1))]
    pair = run("new", 0, outcomes), run("old", 0, outcomes)
    return cautions(made, made.thresholds[0], [pair] * rounds, estimate)


def test_more_than_output_lengths_allow_comes_of_a_broken_baseline() -> None:
    made = plan(FASTER, seats=2)  # in batches of 2: 20 steps; 11 at the least
    assert told(made, 1.8) == ()
    assert "at most 1.82" in told(made, 1.9)[0]


def test_the_ceiling_is_known_only_at_equal_seats_in_order_of_arrival_all_at_once() -> None:
    arms: tuple[Mapping[str, object], ...] = (
        {"new": {"seats": 4}, "old": {"batching": "static"}},
        {"new": {}, "old": {"batching": "static-sorted"}},
    )
    for each in arms:
        assert told(plan(FASTER, seats=2, arms=each), 9.0) == ()
    apart = plan(FASTER, seats=2).model_dump()["workloads"]
    apart["load"]["together"] = False
    assert told(plan(FASTER, seats=2, workloads=apart), 9.0) == ()


def test_a_p99_of_few_requests_is_of_its_worst_few() -> None:
    (caution,) = told(plan({"measure": "first_token_p99_s", "at_most": 1.0}))
    assert "4 requests" in caution and "459" in caution


def test_latencies_of_an_arm_that_completes_less_are_marked() -> None:
    made = plan({"measure": "first_token_p50_s", "over": "old", "at_most": 1.0})
    refused = run("new", 0, [outcome(0), outcome(1, fate=Fate.REFUSED, tokens_s=())])
    all_served = run("old", 0, [outcome(0), outcome(1)])
    (caution,) = cautions(made, made.thresholds[0], [(refused, all_served)], 1.0)
    assert caution.startswith("new completed 1 requests, old 2")
    assert cautions(made, made.thresholds[0], [(all_served, all_served)], 1.0) == ()


def test_answers_of_another_length_are_marked() -> None:
    made = plan({"measure": "end_to_end_p50_s", "over": "old", "at_most": 1.0})
    short = run("new", 0, [outcome(0, tokens_s=(0.1, 0.2)), outcome(1, tokens_s=(0.1, 0.2))])
    usual = run("old", 0, [outcome(0), outcome(1)])
    (caution,) = cautions(made, made.thresholds[0], [(short, usual)], 1.0)
    assert "0.50 times the tokens" in caution


def test_more_rounds_than_were_planned_are_marked() -> None:
    made = plan({"measure": "completed", "at_least": 1.0}, rounds=6)
    assert told(made, rounds=6) == ()
    assert "7 rounds, where the plan says 6" in told(made, rounds=7)[0]


def test_what_others_did_meanwhile_is_told() -> None:
    made = plan({"measure": "output_tokens_per_s", "over": "old", "at_least": 1.0})
    alone = run("new", 0, [outcome(0)])
    beside = replace(run("old", 0, [outcome(0)]), use=Use(others=0.381))
    (caution,) = cautions(made, made.thresholds[0], [(alone, beside)], 1.0)
    assert caution == "in 1 of 2 runs others had more than 5% of the processors, up to 38%"
    assert cautions(made, made.thresholds[0], [(alone, alone)], 1.0) == ()


def test_where_no_run_counts_there_is_nothing_to_say() -> None:
    made = plan(FASTER)
    assert cautions(made, made.thresholds[0], [None], None) == ()
