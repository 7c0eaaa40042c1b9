from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from chairlift.kernels import reference
from chairlift.kernels.logits import Adjustment
from chairlift.kernels.sampler import NumpySampler
from chairlift.workers.sampler import sample_step, score_prompts
from chairlift.workers.sequence import NO_TOKEN, Slice, StepPlan
from support.cpp_kernels import make_kernels
from support.decoding import make_sequence

VOCABULARY = 40
EOS = (2, 3)


def row(seed=0):
    random = np.random.default_rng(seed)
    return (3 * random.standard_normal(VOCABULARY)).astype(np.float32)


def sequence_with(prompt=(5, 6, 6), output=(), index=0, **sampling):
    sequence = make_sequence(index, prompt, **sampling)
    sequence.tokens += output
    return sequence


def decoding(*sequences):
    return StepPlan(tuple(Slice(each, each.num_tokens - 1, 1, True) for each in sequences))


@pytest.fixture(scope="module", params=["numpy", "cpp"])
def sampler(request):
    return NumpySampler() if request.param == "numpy" else make_kernels().sampler


def sampled(sampler, sequence, logits):
    """Its token, the logits that it was chosen from, and its log probabilities."""
    logits = np.array([logits], np.float32)
    result = sample_step(decoding(sequence), logits, EOS, sampler)
    return result.tokens[0], logits[0], result.logprobs.get(0)


ASKED = [
    {},
    {"presence_penalty": 0.5},
    {"frequency_penalty": -0.5},
    {"repetition_penalty": 1.2},
    {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 0.5},
    {"logit_bias": ((1, 5.0), (6, -100.0))},
    {"allowed_token_ids": (0, 5, 6, 7)},
    {"min_tokens": 7, "stop_token_ids": (9, 5)},
    {"min_tokens": 7, "stop_token_ids": (9, 5), "ignore_eos": True},
    {"min_tokens": 6, "stop_token_ids": (9, 5)},
]


def asked_of_the_reference(sequence):
    asked = sequence.sampling
    forbidden = asked.stop_token_ids + (() if asked.ignore_eos else EOS)
    return Adjustment(
        biased=np.array([token for token, _ in asked.logit_bias], np.int64),
        bias=np.array([bias for _, bias in asked.logit_bias], np.float32),
        prompt=np.array(sequence.tokens[: sequence.num_prompt]),
        output=np.array(sequence.tokens[sequence.num_prompt :], np.int64),
        repetition=asked.repetition_penalty,
        frequency=asked.frequency_penalty,
        presence=asked.presence_penalty,
        allowed=np.array(asked.allowed_token_ids, np.int64),
        forbidden=np.array(forbidden if sequence.num_output < asked.min_tokens else (), np.int64),
    )


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("output", [(), (7, 7, 5, 7, 0, 38)])
def test_parameters_mean_what_the_reference_says(sampler, asked, output):
    logits = row()
    sequence = sequence_with(output=output, logprobs=4, **asked)
    expected = reference.adjusted(
        torch.from_numpy(logits).double(), asked_of_the_reference(sequence)
    )
    token, after, logprobs = sampled(sampler, sequence, logits)
    np.testing.assert_allclose(after, expected.numpy(), rtol=1e-5, atol=1e-5)
    assert token == expected.argmax()
    likely = torch.log_softmax(expected, 0)
    assert logprobs.chosen == pytest.approx(likely[token].item(), abs=1e-5)
    values, tokens = likely.topk(4)
    assert [token for token, _ in logprobs.top] == tokens.tolist()
    assert [value for _, value in logprobs.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_who_asks_for_nothing_is_left_alone(sampler):
    a, b = row(0), row(1)
    logits = np.stack([a, b])
    plan = decoding(
        sequence_with(output=(4, 5)), sequence_with(index=1, output=(4, 5), presence_penalty=1.0)
    )
    sample_step(plan, logits, EOS, sampler)
    assert np.array_equal(logits[0], a)
    assert not np.array_equal(logits[1], b)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bias_of_a_hundred_forces_and_forbids(sampler, temperature):
    likeliest = int(row().argmax())
    for seed in range(20):
        forced = sequence_with(temperature=temperature, seed=seed, logit_bias=((11, 100.0),))
        assert sampled(sampler, forced, row())[0] == 11
        banned = sequence_with(
            temperature=temperature, seed=seed, logit_bias=((likeliest, -100.0),)
        )
        assert sampled(sampler, banned, row())[0] != likeliest


def test_only_allowed_tokens_are_chosen_and_only_from_the_length_asked_for_an_end_token(sampler):
    logits = np.zeros(VOCABULARY, np.float32)
    logits[list(EOS)] = 50.0
    for output, possible in (((), {7}), ((7,) * 3, {7}), ((7,) * 4, {2, 3})):
        for seed in range(10):
            sequence = sequence_with(
                output=output, temperature=1.0, seed=seed, min_tokens=4, allowed_token_ids=(2, 3, 7)
            )
            assert sampled(sampler, sequence, logits)[0] in possible


def test_a_mask_is_kept_to_and_log_probabilities_are_of_what_it_leaves(sampler):
    mask = (1 << 7 | 1 << 30).to_bytes(5, "little")
    sequence = sequence_with(grammar="some", logprobs=3)
    logits = np.array([row()], np.float32)
    result = sample_step(decoding(sequence), logits, EOS, sampler, {0: mask})
    assert result.tokens[0] in (7, 30)
    likely = {token for token, value in result.logprobs[0].top if value > -math.inf}
    assert likely == {7, 30}
    assert sum(math.exp(value) for _, value in result.logprobs[0].top) == pytest.approx(1)


def test_an_end_comes_before_the_length_asked_for_where_nothing_else_may(sampler):
    mask = (1 << EOS[0]).to_bytes(5, "little")
    sequence = sequence_with(grammar="some", min_tokens=9)
    result = sample_step(decoding(sequence), np.array([row()], np.float32), EOS, sampler, {0: mask})
    assert result.tokens == (EOS[0],)


def test_who_may_have_no_token_gets_none_and_the_others_theirs(sampler):
    plain, lost = sequence_with(index=1), sequence_with(index=2, grammar="some", logprobs=1)
    logits = np.array([row(), row()], np.float32)
    result = sample_step(decoding(plain, lost), logits, EOS, sampler, {1: b""})
    assert result.tokens == (sampled(sampler, plain, row())[0], NO_TOKEN)


def test_an_end_token_can_come_at_once_when_it_is_no_end(sampler):
    logits = np.zeros(VOCABULARY, np.float32)
    logits[2] = 50.0
    assert sampled(sampler, sequence_with(min_tokens=4, ignore_eos=True), logits)[0] == 2
    assert sampled(sampler, sequence_with(min_tokens=4), logits)[0] == 0


def test_a_length_that_nothing_allowed_can_reach_gives_way(sampler):
    token, _, logprobs = sampled(
        sampler,
        sequence_with(min_tokens=4, allowed_token_ids=EOS, logprobs=1),
        np.zeros(VOCABULARY),
    )
    assert token == 2
    assert logprobs.chosen == pytest.approx(math.log(0.5))


@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("asked", ASKED)
def test_hostile_logits_give_a_token_that_was_possible(sampler, value, temperature, asked):
    sequence = sequence_with(output=(7, 8), temperature=temperature, logprobs=VOCABULARY, **asked)
    token, _, logprobs = sampled(sampler, sequence, np.full(VOCABULARY, value))
    assert logprobs.chosen > -math.inf
    assert dict(logprobs.top)[token] == logprobs.chosen
    assert not any(math.isnan(value) for _, value in logprobs.top)
    allowed = sequence.sampling.allowed_token_ids
    assert not allowed or token in allowed


def test_greedy_is_certain_only_of_what_alone_is_possible(sampler):
    sequence = sequence_with(logprobs=2, allowed_token_ids=(4,), top_k=1)
    _, _, logprobs = sampled(sampler, sequence, row())
    assert (logprobs.chosen, logprobs.top) == (0.0, ((4, 0.0), (0, -math.inf)))


def test_temperature_and_truncation_do_not_touch_the_log_probabilities(sampler):
    _, _, plain = sampled(sampler, sequence_with(logprobs=3), row())
    _, _, cut = sampled(
        sampler, sequence_with(logprobs=3, temperature=0.5, top_k=1, top_p=0.1), row()
    )
    assert plain == cut


def test_log_probabilities_go_to_those_who_asked(sampler):
    sequences = [
        sequence_with(index=index, logprobs=logprobs)
        for index, logprobs in enumerate([None, 0, 3, None, 1])
    ]
    result = sample_step(decoding(*sequences), np.stack([row(i) for i in range(5)]), EOS, sampler)
    assert {index: len(each.top) for index, each in result.logprobs.items()} == {1: 0, 2: 3, 4: 1}
    for index, each in result.logprobs.items():
        likely = torch.log_softmax(torch.from_numpy(row(index)).double(), 0)
        assert each.chosen == pytest.approx(likely[result.tokens[index]].item(), abs=1e-5)


def test_a_row_does_not_depend_on_its_company(sampler):
    sequences = [
        sequence_with(
            index=index,
            output=[(7 * index + i) % VOCABULARY for i in range(index)],
            seed=index,
            temperature=float(index % 3),
            top_p=1.0 if index % 2 else 0.9,
            logprobs=index % 4,
            **ASKED[index % len(ASKED)],
        )
        for index in range(33)
    ]

    def results(chosen):
        logits = np.stack([row(sequence.key.handle) for sequence in chosen])
        result = sample_step(decoding(*chosen), logits, EOS, sampler)
        return [(token, result.logprobs[index]) for index, token in enumerate(result.tokens)]

    alone = [results([sequence])[0] for sequence in sequences]
    for count in range(1, 34):
        assert results(sequences[:count]) == alone[:count]
    assert results(sequences[::-1]) == alone[::-1]


def prompt_rows(length):
    """The row of position ``p`` is that of seed ``p``."""
    return np.stack([row(position) for position in range(length)])


def score(sampler, pieces):
    """Scores of one step, from rows that all sequences share by position."""
    positions = np.concatenate(
        [np.arange(piece.start, piece.start + piece.count) for piece in pieces]
    )
    asked = []

    def logits_of(rows):
        asked.append(len(rows))
        return prompt_rows(100)[positions[rows]]

    return score_prompts(StepPlan(tuple(pieces)), logits_of, sampler), asked


def test_a_slice_scores_the_prompt_tokens_after_each_of_its_own(sampler):
    sequence = sequence_with(prompt=range(10, 20), prompt_logprobs=2)
    other = sequence_with(prompt=range(5))
    whole, _ = score(sampler, [Slice(other, 0, 5, True), Slice(sequence, 0, 10, True)])
    assert list(whole) == [1]
    assert len(whole[1]) == 9
    for position, logprobs in enumerate(whole[1]):
        likely = torch.log_softmax(torch.from_numpy(row(position)).double(), 0)
        assert logprobs.chosen == pytest.approx(likely[11 + position].item(), abs=1e-5)
        assert [token for token, _ in logprobs.top] == likely.topk(2).indices.tolist()

    parts = [(0, 1), (1, 4), (5, 3), (8, 2)]
    scored = [score(sampler, [Slice(sequence, *part, part[0] == 8)])[0][0] for part in parts]
    assert [len(each) for each in scored] == [1, 4, 3, 1]
    assert sum(scored, ()) == whole[1]


def test_prompts_are_scored_a_few_rows_at_a_time(sampler):
    sequence = sequence_with(prompt=[1] * 99, prompt_logprobs=0)
    scores, asked = score(sampler, [Slice(sequence, 0, 99, True)])
    assert len(scores[0]) == 98
    assert max(asked) <= 32
    assert sum(asked) == 98


def test_a_prompt_of_one_token_has_nothing_to_score(sampler):
    assert score(sampler, [Slice(sequence_with(prompt=[1], prompt_logprobs=1), 0, 1, True)]) == (
        {0: ()},
        [],
    )


def test_prompts_whose_output_has_begun_were_scored_before(sampler):
    sequence = sequence_with(prompt=range(9), output=[4], prompt_logprobs=1)
    assert score(sampler, [Slice(sequence, 0, 10, True)]) == ({}, [])


def test_prompt_scores_are_those_of_the_bare_logits(sampler):
    sequence = sequence_with(prompt=range(9), prompt_logprobs=1)
    sampling = dataclasses.replace(sequence.sampling, logit_bias=((1, 100.0),), min_tokens=5)
    biased = sequence_with(prompt=range(9), prompt_logprobs=1)
    biased.sampling = sampling
    assert score(sampler, [Slice(biased, 0, 9, True)]) == score(
        sampler, [Slice(sequence, 0, 9, True)]
    )
