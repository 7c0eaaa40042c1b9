from __future__ import annotations

from dataclasses import replace

import pytest

from chairlift.evaluation.study_measures import (
    MEASURES,
    by_group,
    groups,
    run_interval,
    value,
    worst,
)
from chairlift.evaluation.study_run import Fate, Outcome, Ride, Run, Use
from support.study_runs import TARGETS, outcome, run


def measured(name: str, *outcomes: Outcome, **fields: object) -> float | None:
    return value(run("new", 0, outcomes, **fields), name, TARGETS)


def lost(number: int, fate: Fate, **fields: object) -> Outcome:
    return outcome(number, fate=fate, tokens_s=(), digest=None, **fields)


def test_every_latency_has_a_mean_and_four_levels() -> None:
    for family in ("first_token", "time_per_output_token", "inter_token", "longest_gap"):
        for level in ("mean", "p50", "p90", "p95", "p99"):
            assert MEASURES[f"{family}_{level}_s"].latency
    assert {"end_to_end_p99_s", "slowdown_p99", "slowdown_mean"} <= set(MEASURES)
    assert all(measure.name == name for name, measure in MEASURES.items())


def test_latencies_count_from_when_a_request_was_meant_to_be_sent() -> None:
    late = outcome(intended_s=1.0, sent_s=3.0, tokens_s=(4.0, 4.5, 6.0), ended_s=6.0)
    assert measured("first_token_p99_s", late) == 3.0
    assert measured("end_to_end_p99_s", late) == 5.0
    assert measured("time_per_output_token_p50_s", late) == 1.0
    assert measured("longest_gap_p50_s", late) == 1.5
    assert measured("inter_token_p50_s", late) == 0.5
    assert measured("inter_token_mean_s", late) == 1.0
    assert measured("slowdown_p50", late) == pytest.approx(50.0)
    assert measured("lag_p99_s", late) == 2.0


def test_a_p99_is_a_value_that_was_measured() -> None:
    many = [outcome(i, tokens_s=(float(i),)) for i in range(1, 201)]
    assert measured("first_token_p99_s", *many) == 198.0
    assert measured("first_token_p90_s", *many) == 180.0


def test_latencies_are_of_completed_requests_and_shares_of_all() -> None:
    fared = [
        outcome(0),
        lost(1, Fate.REFUSED),
        lost(2, Fate.GAVE_UP),
        outcome(3, fate=Fate.FAILED, tokens_s=(9.0,)),
    ]
    assert measured("first_token_p99_s", *fared) == 0.5
    for share in ("completed", "refused", "gave_up", "failed", "in_time"):
        assert measured(share, *fared) == 0.25
    assert measured("output_tokens_per_s", *fared, seconds=2.0) == 2.0
    assert measured("requests_per_s", *fared, seconds=2.0) == 0.5
    assert measured("goodput", *fared, seconds=2.0) == 0.5


def test_in_time_is_who_keeps_both_targets() -> None:
    slow_start = outcome(tokens_s=(1.1, 1.15))
    slow_after = outcome(tokens_s=(0.5, 0.61))
    on_the_dot = outcome(tokens_s=(1.0,))
    assert measured("in_time", slow_start, slow_after, on_the_dot) == pytest.approx(1 / 3)


def test_tokens_that_are_missing_are_late() -> None:
    stalled = outcome(tokens_s=(0.9, 1.1, 1.21, 1.3))  # due at 1.0, 1.1, 1.2, 1.3
    assert measured("tokens_late", stalled) == 0.25
    short = outcome(tokens_s=(0.9,))
    assert measured("tokens_late", short) == 0.75
    assert measured("tokens_late", stalled, lost(1, Fate.REFUSED)) == 5 / 8


def test_what_is_not_there_is_none() -> None:
    refused = lost(0, Fate.REFUSED)
    for name in ("first_token_p99_s", "slowdown_p50", "right_length", "cost_per_good_request"):
        assert measured(name, refused) is None
    for name in ("seats_use", "kv_use", "budget_use", "preemptions", "energy_per_token_j"):
        assert measured(name, outcome()) is None
    assert measured("inter_token_p99_s", outcome(tokens_s=(0.5,))) is None
    assert measured("completed") is None


def test_use_energy_and_price() -> None:
    use = Use(seats=0.9, kv=0.5, budget=0.7, preemptions=3, recomputed=40, energy_j=8.0)
    told = {
        name: measured(name, outcome(), use=use)
        for name in ("seats_use", "kv_use", "budget_use", "preemptions", "recomputed")
    }
    assert list(told.values()) == [0.9, 0.5, 0.7, 3, 40]
    assert measured("energy_per_token_j", outcome(), use=use) == 2.0
    hour = run("new", 0, [outcome(0), outcome(1)], seconds=3600.0, replicas=4)
    assert value(hour, "cost_per_good_request", TARGETS, price_per_hour=3.0) == 6.0


def test_answers_that_are_too_short_or_too_long_are_seen() -> None:
    assert measured("right_length", outcome(asked=4), outcome(1, asked=5)) == 0.5


def test_tokens_are_compared_request_by_request_where_both_completed() -> None:
    ours = run("new", 0, [outcome(0), outcome(1), outcome(2), lost(3, Fate.GAVE_UP)])
    theirs = run("old", 0, [outcome(0), outcome(1, digest="x"), lost(2, Fate.FAILED), outcome(3)])
    assert value(ours, "tokens_equal", TARGETS, theirs) == 0.5
    assert value(ours, "tokens_equal", TARGETS) is None


def test_requests_that_were_never_sent_lag_as_long_as_they_were_there() -> None:
    unsent = outcome(intended_s=1.0, sent_s=None, tokens_s=(), ended_s=8.0, fate=Fate.GAVE_UP)
    assert measured("lag_p99_s", unsent) == 7.0


def test_groups_are_by_tenant_and_by_classes_of_length_with_fixed_edges() -> None:
    lengths = [(64, 16), (65, 17), (512, 128), (513, 129)]
    told = run(
        "new",
        0,
        [
            outcome(i, tenant="ab"[i % 2], prompt=prompt, asked=asked)
            for i, (prompt, asked) in enumerate(lengths)
        ],
    )
    assert {name: len(each) for name, each in groups(told, "tenant").items()} == {"a": 2, "b": 2}
    sizes = {name: len(each) for name, each in groups(told, "prompt_class").items()}
    assert sizes == {"short (to 64)": 1, "medium (to 512)": 2, "long (over 512)": 1}
    sizes = {name: len(each) for name, each in groups(told, "output_class").items()}
    assert sizes == {"short (to 16)": 1, "medium (to 128)": 2, "long (over 128)": 1}


def test_a_measure_of_a_group_is_of_its_requests_only() -> None:
    told = run("new", 0, [outcome(0, tenant="a"), outcome(1, tenant="b", tokens_s=(2.0,))])
    assert by_group(told, "first_token_p50_s", "tenant", TARGETS) == {"a": 0.5, "b": 2.0}


def test_the_interval_of_a_run_is_around_its_figure() -> None:
    steady = run(
        "new",
        0,
        [outcome(i, intended_s=i / 10, tokens_s=(i / 10 + 0.5 + i % 7 / 10,)) for i in range(200)],
        seconds=21.0,
    )
    told = run_interval(steady, "first_token_mean_s", TARGETS, 0.05)
    figure = value(steady, "first_token_mean_s", TARGETS)
    assert told is not None and figure is not None
    assert told[0] < figure < told[1] < told[0] + 0.2
    assert run_interval(steady, "seats_use", TARGETS, 0.05) is None


def test_the_worst_come_first_each_with_its_story() -> None:
    slow = outcome(1, tokens_s=(0.5, 0.6, 2.6), ended_s=2.6, asked=3)
    fared = [outcome(0), slow, lost(2, Fate.REFUSED, why="queue_full", ended_s=0.1)]
    told = replace(_seated(slow), outcomes=tuple(fared))
    first, second = worst(told, 2)
    assert first.outcome.number == 2
    assert "no first token" in first.story and "refused queue_full" in first.story
    assert second.outcome.number == 1
    assert "longest gap 2 s before token 3" in second.story
    assert "seated at 0.4 s, 1 times preempted" in second.story
    assert "26 times as long as alone" in second.story


def _seated(slow: Outcome) -> Run:
    rides = (Ride(slow.number, 0, 0.4, 0.7), Ride(slow.number, 1, 2.0, 2.6))
    return run("new", 0, [slow], rides=rides)
