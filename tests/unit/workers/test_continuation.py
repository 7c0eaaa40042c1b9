"""A real model goes on with a choice elsewhere as if it had never been interrupted."""

from __future__ import annotations

import pytest

from chairlift.cluster.errors import StartupError
from chairlift.cluster.protocol import (
    Controls,
    Delta,
    FinishReason,
    Request,
    SamplingParams,
    Submission,
)
from chairlift.workers.model_runner import ModelRunner
from support.engines import Rig, replica_info
from support.llama_models import random_weights, tiny_spec

SPEC = tiny_spec()
EOS = SPEC.eos_token_ids
PROMPT = tuple(range(20, 43))
TOKENS = 24
WANTED = {
    "plain": SamplingParams(max_tokens=TOKENS, seed=1, ignore_eos=True),
    "penalties": SamplingParams(
        max_tokens=TOKENS,
        seed=2,
        presence_penalty=0.5,
        frequency_penalty=1.0,
        repetition_penalty=1.3,
        ignore_eos=True,
        logprobs=3,
        prompt_logprobs=1,
    ),
    "min_tokens": SamplingParams(
        max_tokens=TOKENS, seed=3, min_tokens=10, logit_bias=((EOS[0], 30.0),), logprobs=0
    ),
    "stop_token": SamplingParams(
        max_tokens=TOKENS,
        seed=4,
        temperature=0.8,
        top_k=8,
        min_tokens=4,
        stop_token_ids=tuple(range(0, 96, 5)),
    ),
}


@pytest.fixture(scope="module", params=["cpp", "torch"])
def runner(request):
    try:
        return ModelRunner(
            SPEC, random_weights(SPEC), num_blocks=64, block_size=4, kernels=request.param
        )
    except StartupError as error:
        pytest.skip(str(error))


def told(runner: ModelRunner, request: Request, choice: int, output: tuple[int, ...]) -> Delta:
    """All that a replica of its own tells of one choice, as one delta."""
    info = replica_info(vocab_size=SPEC.vocab_size, blocks_total=64, block_size=4)
    rig = Rig(Controls(token_budget=11), info=info, eos=EOS, runner=runner)
    submission = Submission(0, request, choice, output)
    assert rig.intake.submit(0, submission).refusal is None
    rig.run_until_idle()
    deltas = [delta for each in rig.outputs for delta in each.deltas.get(0, ())]
    return Delta(
        0,
        tuple(token for delta in deltas for token in delta.tokens),
        deltas[-1].finish,
        logprobs=tuple(each for delta in deltas for each in delta.logprobs),
        prompt_logprobs=tuple(each for delta in deltas for each in delta.prompt_logprobs),
    )


@pytest.mark.parametrize("wanted", WANTED)
@pytest.mark.parametrize("choice", [0, 2])
def test_tokens_and_log_probabilities_are_those_of_an_undisturbed_run(runner, wanted, choice):
    request = Request("r", PROMPT, WANTED[wanted])
    whole = told(runner, request, choice, ())
    assert len(whole.tokens) > 3
    for known in (1, 2, len(whole.tokens) // 2, len(whole.tokens) - 1):
        rest = told(runner, request, choice, whole.tokens[:known])
        assert (rest.tokens, rest.finish) == (whole.tokens[known:], whole.finish)
        assert rest.prompt_logprobs == ()
        due = whole.logprobs[known:]
        assert len(rest.logprobs) == len(due)
        if runner.exact:
            assert rest.logprobs == due
        assert [each.chosen for each in rest.logprobs] == pytest.approx(
            [each.chosen for each in due], abs=1e-4
        )


def test_the_requests_above_end_in_different_ways(runner):
    """Else they would not show that lengths and endings count what was told elsewhere."""
    ends = {
        name: told(runner, Request("r", PROMPT, sampling), 0, ())
        for name, sampling in WANTED.items()
    }
    assert ends["plain"].finish is ends["penalties"].finish is FinishReason.LENGTH
    assert (len(ends["min_tokens"].tokens), ends["min_tokens"].finish) == (11, FinishReason.STOP)
    assert ends["stop_token"].finish is FinishReason.STOP
    assert len(ends["penalties"].prompt_logprobs) == len(PROMPT) - 1
