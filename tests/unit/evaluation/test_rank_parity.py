"""How the answers of one process and of ranks are compared; the whole comparison is slow."""

from __future__ import annotations

import json

import pytest

from chairlift.cluster.protocol import FinishReason, TokenLogprobs
from chairlift.evaluation import rank_parity
from chairlift.evaluation.exactness_run import Answer
from chairlift.evaluation.rank_parity import Measured, compare


def answered(tokens: list[int], second: float = -3.0, first: float = -1.0) -> Measured:
    likely = TokenLogprobs(first, ((tokens[0], first), (99, second)))
    logprobs = [likely for _ in tokens]
    return Measured([Answer(tokens, logprobs, [likely], FinishReason.LENGTH)], {1: 4.0})


def test_equal_answers_are_good():
    parity = compare(["a"], answered([1, 2]), answered([1, 2]))
    assert parity.good and parity.equal == 1 and parity.speed == {1: 1.0}


def test_another_token_that_is_as_likely_is_a_tie_and_shown():
    parity = compare(["a"], answered([1, 2], second=-1.00005), answered([1, 7]))
    assert parity.good and parity.equal == 0
    assert parity.ties == ("a, output 1: 2 alone, 7 by ranks, 5.0e-05 apart",)


def test_another_token_that_is_less_likely_is_a_difference():
    parity = compare(["a"], answered([1, 2]), answered([1, 7]))
    assert not parity.good and len(parity.differences) == 1


def test_log_probabilities_that_are_far_apart_are_not_good():
    parity = compare(["a"], answered([1, 2]), answered([1, 2], first=-1.001))
    assert not parity.good and parity.largest_difference == pytest.approx(0.001)


def test_a_degree_that_does_not_fit_is_refused(capsys):
    assert rank_parity.main(["--ranks", "4"]) == 2
    assert "possible are 1, 2, 3, 9" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_answer_like_one_process(capsys):
    assert rank_parity.main([]) == 0
    assert json.loads(capsys.readouterr().out)["equal"] >= 18
