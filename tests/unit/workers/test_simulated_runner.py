"""The simulated runner in the real engine, against the rule that says its tokens."""

import itertools
import math
import struct

import pytest

from chairlift.cluster.protocol import (
    Controls,
    FinishReason,
    Request,
    SamplingParams,
    Submission,
    TokenLogprobs,
)
from chairlift.workers.sequence import SequenceKey
from chairlift.workers.simulated_runner import SimulatedRunner, simulated_token
from support.engines import Rig, replica_info

VOCAB_SIZE = 50
EOS = (0, 7, 8, 49)


def rule(prompt, max_tokens: int, seed: int = 0, choice: int = 0) -> tuple[int, ...]:
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(simulated_token(tokens, seed, choice, VOCAB_SIZE, EOS))
    return tuple(tokens[len(prompt) :])


def rig(*, step_s: float = 0.0, token_budget: int = 64, **facts) -> Rig:
    info = replica_info(**({"vocab_size": VOCAB_SIZE, "max_waiting": 100} | facts))
    return Rig(
        Controls(max_sequences=info.max_sequences, token_budget=token_budget),
        info=info,
        eos=EOS,
        runner=SimulatedRunner(VOCAB_SIZE, EOS, step_s),
    )


def go_on(made: Rig, handle: int, request: Request, output, choice: int = 0) -> SequenceKey:
    answer = made.intake.submit(0, Submission(handle, request, choice, tuple(output)))
    assert answer.refusal is None, answer.detail
    return SequenceKey(0, handle)


def logprobs_of(made: Rig, key: SequenceKey) -> tuple[list[TokenLogprobs], list[TokenLogprobs]]:
    """Of a sequence's output and of its prompt."""
    deltas = [
        delta
        for output in made.outputs
        for delta in output.deltas.get(key.origin, [])
        if delta.handle == key.handle
    ]
    return (
        list(itertools.chain.from_iterable(delta.logprobs for delta in deltas)),
        list(itertools.chain.from_iterable(delta.prompt_logprobs for delta in deltas)),
    )


def test_tokens_are_those_of_the_rule_and_max_tokens_says_how_many():
    made = rig()
    keys = [made.submit(i, [i, 2], max_tokens=20, seed=i) for i in range(8)]
    made.run_until_idle()
    for i, key in enumerate(keys):
        assert made.answer(key) == (rule([i, 2], 20, seed=i), FinishReason.LENGTH)


def test_end_tokens_are_never_sampled_and_every_other_one_can_be():
    seen = {simulated_token((1, 2), seed, 0, VOCAB_SIZE, EOS) for seed in range(2000)}
    assert seen == set(range(VOCAB_SIZE)) - set(EOS)


def test_choices_differ():
    made = rig()
    made.submit(0, [1, 2], n=3, max_tokens=9)
    made.run_until_idle()
    outputs = [made.answer(SequenceKey(0, choice))[0] for choice in range(3)]
    assert outputs == [rule([1, 2], 9, choice=choice) for choice in range(3)]
    assert len(set(outputs)) == 3


@pytest.mark.parametrize("token_budget", [1, 3, 64])
def test_preemption_chunks_and_cached_prefixes_change_nothing(token_budget):
    made = rig(token_budget=token_budget, blocks_total=12, max_sequence_tokens=48)
    prompts = [[*range(1, 10), i] for i in range(12)]
    keys = [made.submit(i, prompt, max_tokens=20, seed=i) for i, prompt in enumerate(prompts)]
    made.run_until_idle(5000)
    for i, key in enumerate(keys):
        assert made.answer(key)[0] == rule(prompts[i], 20, seed=i)
    assert made.engine.load.cache_hits > 0
    assert made.engine.load.preemptions > 0 or token_budget == 1


@pytest.mark.parametrize("told", [1, 5, 11])
def test_a_continuation_says_the_rest(told):
    expected = rule([3, 4, 5], 12, seed=9, choice=2)
    made = rig()
    request = Request("r", (3, 4, 5), SamplingParams(max_tokens=12, seed=9))
    key = go_on(made, 0, request, expected[:told], choice=2)
    made.run_until_idle()
    assert made.answer(key) == (expected[told:], FinishReason.LENGTH)


def test_log_probabilities_belong_to_the_tokens_wherever_a_sequence_goes_on():
    sampling = SamplingParams(max_tokens=8, logprobs=3)
    whole = rig()
    key = go_on(whole, 0, Request("r", (1, 2, 3), sampling), ())
    whole.run_until_idle()
    tokens, (scored, _) = whole.answer(key)[0], logprobs_of(whole, key)
    assert len(scored) == len(tokens) == 8
    for token, each in zip(tokens, scored, strict=True):
        assert each.top[0] == (token, each.chosen)
        values = [value for _, value in each.top]
        assert len(each.top) == 3 and values == sorted(values, reverse=True)
        for value in values:
            assert math.isfinite(value) and value <= 0
            assert struct.unpack("f", struct.pack("f", value)) == (value,)
    rest = rig()
    go_on(rest, 0, Request("r", (1, 2, 3), sampling), tokens[:3])
    rest.run_until_idle()
    assert logprobs_of(rest, key) == (scored[3:], [])


@pytest.mark.parametrize("token_budget", [2, 5, 64])
def test_log_probabilities_of_the_prompt_do_not_depend_on_chunks(token_budget):
    prompt = list(range(1, 15))
    scores = []
    for budget in (64, token_budget):
        made = rig(token_budget=budget)
        key = made.submit(0, prompt, max_tokens=2, prompt_logprobs=0)
        made.run_until_idle()
        scores.append(logprobs_of(made, key))
    assert scores[0] == scores[1]
    output, of_prompt = scores[0]
    assert (len(output), len(of_prompt)) == (0, len(prompt) - 1)


def test_a_step_sleeps_for_the_rest_of_its_time():
    slept = []
    times = iter([10.0, 10.003, 20.0, 20.5])
    runner = SimulatedRunner(VOCAB_SIZE, EOS, 0.008, clock=lambda: next(times), sleep=slept.append)
    made = Rig(info=replica_info(vocab_size=VOCAB_SIZE), runner=runner, eos=EOS)
    made.submit(0, max_tokens=2)
    made.run_until_idle()
    assert slept == [pytest.approx(0.005)]


def test_it_remembers_only_the_sequences_of_the_last_step():
    made = rig()
    made.submit(0, max_tokens=2)
    made.submit(1, max_tokens=9)
    made.run_until_idle()
    assert len(made.engine._runner._prefixes) == 1
