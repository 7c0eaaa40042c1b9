"""Preempted sequences get what they get alone, and the engine is as before when it is over."""

from __future__ import annotations

from chairlift.evaluation.pressure import study
from support.scored_fake import ScoredFake


def test_all_but_the_oldest_are_preempted_and_nobody_gets_anything_else() -> None:
    report = study(ScoredFake(company_matters=False), 1000, seed=0)
    before, pressure, after = report.phases
    assert pressure.preempted == pressure.requests - 1
    assert before.preempted == after.preempted == 0
    assert report.differing == report.missing_logprobs == 0


def test_what_differs_from_alone_is_counted() -> None:
    assert study(ScoredFake(company_matters=True), 1000, seed=0).differing > 0
