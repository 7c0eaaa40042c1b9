from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.study_run import Fate, Outcome, Run, Use
from chairlift.evaluation.study_verdict import State, check_measures, judge
from support.study_runs import outcome, plan, run

FASTER = {"measure": "output_tokens_per_s", "over": "old", "at_least": 1.8}


def rounds(make: Callable[[int], Sequence[Run]], number: int = 6) -> list[Run]:
    return [each for i in range(number) for each in make(i)]


def paired(ratio: float, spread: float = 0.01) -> Callable[[int], Sequence[Run]]:
    """Of the new arm being so many times as fast, give or take."""
    return lambda i: (
        run("new", i, seconds=1 / (ratio + spread * (-1) ** i * (i + 1))),
        run("old", i),
    )


def both(outcomes: Sequence[Outcome]) -> Callable[[int], Sequence[Run]]:
    return lambda i: (run("new", i, outcomes), run("old", i, outcomes))


def test_a_claim_that_holds_passes() -> None:
    judgement = judge(plan(FASTER), rounds(paired(2.0)))
    (verdict,) = judgement.verdicts
    assert (verdict.state, judgement.state, judgement.exit_code) == (
        State.PASSED,
        State.PASSED,
        0,
    )
    assert verdict.estimate == pytest.approx(2.0, abs=0.05)
    assert verdict.p == 1 / 64
    assert verdict.completed == (1.0, 1.0)


def test_a_claim_that_does_not_hold_fails() -> None:
    judgement = judge(plan(FASTER), rounds(paired(1.0, 0.0)))
    assert (judgement.state, judgement.exit_code) == (State.FAILED, 1)


def test_too_few_rounds_are_not_enough_and_say_how_many_more() -> None:
    judgement = judge(plan(FASTER, rounds=3), rounds(paired(2.0), 3))
    assert (judgement.state, judgement.exit_code) == (State.NOT_ENOUGH, 2)
    assert judgement.verdicts[0].more_rounds == 3
    assert judge(plan(FASTER), []).verdicts[0].reason == "there are no runs that count"


def test_one_failure_outweighs_what_passed() -> None:
    slower = FASTER | {"at_most": 1.0, "at_least": None}
    judgement = judge(plan(FASTER, slower), rounds(paired(2.0)))
    assert [each.state for each in judgement.verdicts] == [State.PASSED, State.FAILED]
    assert judgement.exit_code == 1


def test_a_generator_that_lags_makes_runs_void() -> None:
    def lagging(i: int) -> Sequence[Run]:
        late = [outcome(n, sent_s=0.02) for n in range(10)]  # the limit is 1% of 1 s
        return run("new", i, late), run("old", i, [outcome(n) for n in range(10)])

    judgement = judge(plan(FASTER, together=False), rounds(lagging))
    assert (judgement.state, judgement.exit_code) == (State.VOID, 2)
    assert {(each.arm, each.round) for each in judgement.void_runs} == {
        ("new", i) for i in range(6)
    }
    assert "lagged: p99 0.02 s, over 0.01 s" in judgement.void_runs[0].reason


def test_where_all_is_there_at_the_start_nothing_can_lag() -> None:
    handed_over = [outcome(n, sent_s=0.002 * n) for n in range(10)]
    judgement = judge(plan(FASTER, together=True), rounds(both(handed_over)))
    assert not judgement.void_runs


def test_requests_that_were_never_sent_make_a_run_void() -> None:
    unsent = outcome(sent_s=None, tokens_s=(), ended_s=3.0, fate=Fate.GAVE_UP)
    judgement = judge(plan(FASTER), rounds(both([unsent])))
    assert "1 requests were never sent" in judgement.void_runs[0].reason


def test_a_run_with_many_failures_is_void_but_refusals_are_answers() -> None:
    done = [outcome(i) for i in range(9)]
    for fate, void in ((Fate.FAILED, 12), (Fate.REFUSED, 0), (Fate.GAVE_UP, 0)):
        other = outcome(9, fate=fate, tokens_s=(), ended_s=0.1)
        assert len(judge(plan(FASTER), rounds(both([*done, other]))).void_runs) == void


def test_a_run_beside_other_work_is_void_where_the_plan_says_so() -> None:
    def busy(number: int) -> list[Run]:
        return [replace(each, use=Use(others=0.2)) for each in paired(2.0)(number)]

    assert not judge(plan(FASTER), rounds(busy)).void_runs
    judged = judge(plan(FASTER, stop={"others_share": 0.1}), rounds(busy))
    assert judged.state is State.VOID
    assert judged.void_runs[0].reason == "others had 20.0% of the processors, over 10.0%"


def test_void_rounds_do_not_count_and_are_told() -> None:
    runs = rounds(paired(2.0), 7)
    runs[0] = run("new", 0, [outcome(sent_s=0.5)], seconds=9.0)
    (verdict,) = judge(plan(FASTER, rounds=7, together=False), runs).verdicts
    assert verdict.state is State.PASSED
    assert verdict.values_by_round[0] is None
    assert "1 rounds are void" in verdict.reason


def test_arms_that_were_offered_different_requests_cannot_be_compared() -> None:
    judgement = judge(
        plan(FASTER), [run("new", 0, [outcome(prompt=9)]), run("old", 0), run("old", 1)]
    )
    assert {(each.arm, each.round) for each in judgement.void_runs} == {("new", 0), ("old", 0)}
    assert "different requests" in judgement.void_runs[0].reason


def test_the_worst_group_decides_and_all_are_kept() -> None:
    fair = {"measure": "slowdown_p50", "over": "old", "at_most": 1.5, "by": "tenant"}

    def served(i: int) -> Sequence[Run]:
        kept = [outcome(n, tenant="a") for n in range(3)]
        starved = [outcome(3 + n, tenant="b", ended_s=2.0) for n in range(3)]
        usual = [outcome(3 + n, tenant="b") for n in range(3)]
        return run("new", i, [*kept, *starved]), run("old", i, [*kept, *usual])

    (verdict,) = judge(plan(fair), rounds(served)).verdicts
    assert verdict.state is State.FAILED
    assert verdict.reason.startswith("tenant b, the worst of 2")
    assert [(each.name, each.state) for each in verdict.groups] == [
        ("b", State.FAILED),
        ("a", State.PASSED),
    ]
    assert verdict.estimate == verdict.groups[0].estimate == pytest.approx(2.0 / 0.65)


def test_a_group_that_is_not_there_in_each_round_is_judged_by_those_where_it_is() -> None:
    quick = {"measure": "first_token_p50_s", "at_most": 1.0, "by": "tenant"}

    def served(i: int) -> Sequence[Run]:
        rare = [outcome(1, tenant="rare")] if i % 2 else []
        return (run("new", i, [outcome(0), *rare]),)

    (verdict,) = judge(plan(quick), rounds(served, 8)).verdicts
    assert (verdict.state, verdict.more_rounds) == (State.NOT_ENOUGH, 2)
    assert verdict.groups[0].name == "rare"
    assert verdict.groups[1].state is State.PASSED


@pytest.mark.parametrize(("requests", "measure"), [(2_999, "p95"), (3_000, "p99")])
def test_the_p99_of_small_groups_is_not_judged(requests: int, measure: str) -> None:
    quick = {"measure": "first_token_p99_s", "at_most": 1.0, "by": "tenant"}
    runs = [run("new", 0, [outcome(i) for i in range(requests)])]
    (verdict,) = judge(plan(quick), runs).verdicts
    assert verdict.measure == f"first_token_{measure}_s"
    assert any("p95 judged" in each for each in verdict.cautions) == (measure == "p95")


def test_misses_that_neither_arm_has_are_not_worse() -> None:
    punctual = {"measure": "tokens_late", "over": "old", "at_most": 1.0}
    assert judge(plan(punctual), rounds(both([outcome()]))).state is State.PASSED
    late = outcome(tokens_s=(5.0,), asked=4)
    only_new = rounds(lambda i: (run("new", i, [late]), run("old", i)))
    assert judge(plan(punctual), only_new).state is State.FAILED


def test_one_answer_that_differs_between_arms_is_a_failure_at_once() -> None:
    same = {"measure": "tokens_equal", "over": "old", "at_least": 1.0, "every_round": True}
    assert judge(plan(same), rounds(paired(2.0))).state is State.PASSED
    runs = [run("new", 0, [outcome(0), outcome(1, digest="x")])]
    runs += [run("old", 0, [outcome(0), outcome(1)])]
    (verdict,) = judge(plan(same), runs).verdicts
    assert (verdict.state, verdict.estimate) == (State.FAILED, 0.5)


def test_an_arm_that_completes_nothing_has_no_fine_latency() -> None:
    quick = {"measure": "first_token_p50_s", "at_most": 1.0}
    refused = [outcome(fate=Fate.REFUSED, tokens_s=())]
    judgement = judge(plan(quick), rounds(lambda i: (run("new", i, refused),)))
    assert (judgement.state, judgement.verdicts[0].completed) == (State.NOT_ENOUGH, (0.0, None))
    assert judgement.verdicts[0].reason == "no run has such a value"


def test_a_plan_with_measures_that_are_not_there_is_refused_by_name() -> None:
    for threshold, told in (
        ({"measure": "speed", "at_least": 1.0}, r"thresholds\.0\.measure: 'speed'"),
        ({"measure": "tokens_equal", "at_least": 1.0}, "say over"),
        ({"measure": "seats_use", "at_least": 0.5, "by": "tenant"}, "whole runs"),
    ):
        with pytest.raises(ConfigError, match=told):
            check_measures(plan(threshold))


def test_the_same_run_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="two runs"):
        judge(plan(FASTER), [run("new", 0), run("new", 0)])


def test_the_price_of_the_plan_is_what_costs_are_told_by() -> None:
    cheap = {"measure": "cost_per_good_request", "at_most": 2.0}
    runs = [run("new", i, seconds=3600.0) for i in range(6)]
    assert judge(plan(cheap, price_per_hour=1.0), runs).state is State.PASSED
    assert judge(plan(cheap, price_per_hour=3.0), runs).state is State.FAILED
