"""The report on exactness finds what differs, whatever it is."""

from __future__ import annotations

import random

import pytest

from chairlift.cluster.protocol import TokenLogprobs
from chairlift.evaluation.exactness import Report, compare, draw_requests, draw_schedule, study
from chairlift.evaluation.exactness_run import Answer
from chairlift.workers.sequence import StepPlan, StepResult
from support.scored_fake import ScoredFake


def test_schedules_of_a_model_that_keeps_the_promise_differ_in_nothing() -> None:
    report = study(ScoredFake(company_matters=False), 1000, 60, seed=3, tick=lambda: None)
    assert report.exact and report.runs == 60
    assert report.preemptions > 0 and report.cached_tokens > 0
    assert len(report.batching) == 3


def test_one_bit_that_depends_on_the_company_is_found() -> None:
    report = study(ScoredFake(company_matters=True), 1000, 20, seed=3, tick=lambda: None)
    assert report.differing_tokens == 0
    assert report.differing_logprobs > 0
    assert report.first_differences


def test_a_runner_that_fails_every_time_is_not_taken_for_exact() -> None:
    class Broken:
        def advance(self, plan: StepPlan) -> StepResult:
            raise OSError("no device")

    with pytest.raises(RuntimeError, match="ended as FAILED"):
        study(Broken(), 1000, 1, seed=3, tick=lambda: None)


@pytest.mark.parametrize(
    ("answer", "tokens", "logprobs"),
    [
        (Answer([1, 2], [TokenLogprobs(-1.0), TokenLogprobs(-2.0)]), 0, 0),
        (Answer([1, 3], [TokenLogprobs(-1.0), TokenLogprobs(-2.0)]), 1, 0),
        (Answer([1], [TokenLogprobs(-1.0)]), 1, 1),
        (Answer([1, 2], [TokenLogprobs(-1.0), TokenLogprobs(-2.0000000000000004)]), 0, 1),
    ],
)
def test_each_kind_of_difference_counts(answer: Answer, tokens: int, logprobs: int) -> None:
    alone = Answer([1, 2], [TokenLogprobs(-1.0), TokenLogprobs(-2.0)])
    report = Report()
    compare(alone, answer, "here", report)
    assert (report.differing_tokens, report.differing_logprobs) == (tokens, logprobs)


def test_half_of_the_schedules_are_tight_and_all_can_be_played() -> None:
    dice = random.Random(0)
    requests = draw_requests(dice, 1000, 18)
    schedules = [draw_schedule(dice, requests) for _ in range(200)]
    assert 0.3 < sum(schedule.num_blocks < 640 for schedule in schedules) / 200 < 0.7
