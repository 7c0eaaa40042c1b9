from __future__ import annotations

import math

import pytest

from chairlift.cluster.protocol import TokenLogprobs
from chairlift.evaluation.exactness_run import Answer
from chairlift.evaluation.quality import answers, compare, model_perplexity, requests_from, text
from chairlift.workers.model_loading import Compute
from support.scored_fake import ScoredFake


def scored(*pairs: tuple[float, int]) -> Answer:
    """Log probabilities of tokens, and the likeliest ones in their places."""
    return Answer([1], [], [TokenLogprobs(chosen, ((top, -0.1),)) for chosen, top in pairs])


def test_perplexity_is_that_of_all_tokens_and_agreement_their_share() -> None:
    float32 = [scored((-1.0, 5), (-2.0, 6)), scored((-3.0, 7), (-2.0, 8)), Answer([1, 2, 3, 4])]
    int8 = [scored((-1.1, 5), (-2.0, 6)), scored((-3.0, 7), (-2.1, 9)), Answer([1, 2, 9, 4])]
    quality = compare(float32, int8)
    assert quality.tokens == 4
    assert quality.perplexity_float32 == pytest.approx(math.exp(2.0))
    assert quality.change == pytest.approx(math.expm1(0.05))
    assert quality.same_likeliest == 0.75
    assert (quality.same_output, quality.same_answers) == (0.5, 0.0)
    assert not quality.good


def test_a_model_compared_with_itself_is_good() -> None:
    requests = requests_from([7 * i % 900 for i in range(1100)])
    told = answers(ScoredFake(company_matters=False), requests, 1000)
    quality = compare(told, told)
    assert quality.good and quality.change == 0.0
    assert quality.tokens == 1100 - 5  # the first of each window has nothing before it
    assert quality.same_likeliest == quality.same_output == quality.same_answers == 1.0


def test_the_text_is_long_enough_to_tell_one_percent() -> None:
    assert 1400 < len(text().split()) < 2000


@pytest.mark.slow
def test_the_embedded_model_finds_the_text_as_likely_as_ever() -> None:
    assert model_perplexity("smollm2", Compute("auto", "float32", 2)) == pytest.approx(31.3, 0.01)
