from __future__ import annotations

import pytest
import torch

from chairlift.cluster.errors import StartupError
from chairlift.kernels.reference import log_probabilities
from chairlift.workers.model_runner import ModelRunner
from chairlift.workers.sequence import Slice, StepPlan
from support.decoding import make_sequence
from support.llama_models import random_weights, tiny_spec, transformers_model

SPEC = tiny_spec()
BLOCK_SIZE, BLOCKS = 4, 96
PROMPT = torch.randint(SPEC.vocab_size, (37,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.fixture(scope="module", params=["cpp", "torch"])
def runner(request):
    try:
        return ModelRunner(
            SPEC,
            random_weights(SPEC),
            num_blocks=BLOCKS,
            block_size=BLOCK_SIZE,
            kernels=request.param,
        )
    except StartupError as error:
        pytest.skip(str(error))


def scored(runner, ends, company=()):
    """Prompt log probabilities, computed in slices that end at ``ends``."""
    sequence = make_sequence(0, PROMPT, prompt_logprobs=3, logprobs=1)
    sequence.blocks = list(range(10))
    scores = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        piece = Slice(sequence, start, end - start, samples=end == len(PROMPT))
        result = runner.advance(StepPlan((*company, piece)))
        scores += result.prompt_logprobs[len(company)]
    return scores, result.logprobs[len(result.tokens) - 1]


def assert_same(runner, scores, expected):
    if runner.exact:
        assert scores == expected
    assert [each.chosen for each in scores] == pytest.approx(
        [each.chosen for each in expected], abs=1e-4
    )


@pytest.mark.parametrize("ends", [[1, 37], [36, 37], [4, 8, 12, 37], list(range(1, 38))])
def test_slices_change_nothing(runner, ends):
    whole, whole_next = scored(runner, [37])
    parts, parts_next = scored(runner, ends)
    assert len(whole) == len(parts) == 36
    assert_same(runner, [*parts, parts_next], [*whole, whole_next])


def test_company_changes_nothing(runner):
    other = make_sequence(1, range(20), presence_penalty=1.0, temperature=1.0)
    other.blocks = list(range(20, 25))
    alone, alone_next = scored(runner, [20, 37])
    together, together_next = scored(runner, [20, 37], (Slice(other, 0, 20, True),))
    assert_same(runner, [*together, together_next], [*alone, alone_next])


def test_values_are_those_of_transformers(runner):
    model = transformers_model(SPEC, random_weights(SPEC))
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT])).logits[0].double()
    scores, after = scored(runner, [37])
    for row, token, logprobs in zip(logits, PROMPT[1:], scores, strict=False):
        expected = log_probabilities(row)
        assert logprobs.chosen == pytest.approx(expected[token].item(), abs=1e-4)
        assert [token for token, _ in logprobs.top] == expected.topk(3).indices.tolist()
    assert after.top[0] == (logits[-1].argmax().item(), after.chosen)


def test_end_tokens_of_the_model_wait_for_the_length_asked_for(runner):
    always_ends = ((SPEC.eos_token_ids[0], 100.0),)
    sequence = make_sequence(0, PROMPT, min_tokens=1, logit_bias=always_ends)
    sequence.blocks = list(range(10))
    piece = Slice(sequence, 0, len(PROMPT), samples=True)
    assert runner.advance(StepPlan((piece,))).tokens[0] not in SPEC.eos_token_ids
    sequence.tokens.append(1)
    piece = Slice(sequence, len(PROMPT), 1, samples=True)
    assert runner.advance(StepPlan((piece,))).tokens[0] in SPEC.eos_token_ids
