from __future__ import annotations

import pytest
import torch

from chairlift.workers.model_runner import ModelRunner
from chairlift.workers.sequence import Slice, StepPlan, StepResult
from support.cpp_kernels import make_kernels
from support.decoding import Decoder, make_sequence
from support.llama_models import random_weights, tiny_spec

SPEC = tiny_spec()
BLOCK_SIZE, BLOCKS = 4, 96


@pytest.fixture(scope="module", params=["cpp", "torch"])
def runner(request):
    return make_runner(request.param)


def make_runner(kernels="auto"):
    if kernels == "cpp":
        make_kernels()  # skips where they cannot be had
    return ModelRunner(
        SPEC, random_weights(SPEC), num_blocks=BLOCKS, block_size=BLOCK_SIZE, kernels=kernels
    )


def check_same(runner, actual, expected):
    """To the last bit, of kernels that promise it."""
    if runner.exact:
        assert torch.equal(actual, expected)
    else:
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def prompt(length, seed=0):
    random = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(SPEC.vocab_size, (length,), generator=random).tolist()


def decode_alone(runner, index, length, **sampling):
    sequence = make_sequence(index, prompt(length, index), **sampling)
    Decoder(runner, range(BLOCKS), BLOCK_SIZE).run([sequence])
    return sequence.tokens


def last_logits(runner, tokens, chunks, blocks):
    """Logits after ``tokens``, computed in chunks that end at ``chunks``."""
    sequence = make_sequence(0, tokens)
    sequence.blocks = blocks
    logits = None
    for start, end in zip([0, *chunks], [*chunks, len(tokens)], strict=True):
        piece = Slice(sequence, start, end - start, samples=end == len(tokens))
        logits = runner.logits(StepPlan((piece,)))
    return logits


@pytest.mark.parametrize("chunks", [[1], [36], [4, 8, 12], [5, 6, 30], list(range(1, 37))])
def test_chunks_change_nothing(runner, chunks):
    tokens = prompt(37)
    whole = last_logits(runner, tokens, [], list(range(10)))
    check_same(runner, last_logits(runner, tokens, chunks, list(range(10))), whole)


def test_block_tables_change_nothing(runner):
    tokens = prompt(37)
    ascending = last_logits(runner, tokens, [16], list(range(10)))
    scattered = last_logits(runner, tokens, [16], [90, 3, 57, 0, 95, 12, 31, 8, 77, 40])
    assert torch.equal(ascending, scattered)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "top_p": 0.9}])
@pytest.mark.parametrize("budget", [5, 16, 512])
def test_company_changes_nothing(runner, sampling, budget):
    lengths = [1, 3, 4, 17, 30, 8]
    sequences = [
        make_sequence(index, prompt(length, index), seed=index, **sampling)
        for index, length in enumerate(lengths)
    ]
    Decoder(runner, range(BLOCKS), BLOCK_SIZE).run(sequences, budget=budget)
    for index, length in enumerate(lengths):
        assert sequences[index].tokens == decode_alone(
            runner, index, length, seed=index, **sampling
        )


def test_logits_in_company_are_those_alone(runner):
    pieces = []
    for index, length in enumerate([9, 30, 2, 14]):
        sequence = make_sequence(index, prompt(length, index))
        sequence.blocks = list(range(10 * index, 10 * index + 10))
        pieces.append(Slice(sequence, 0, length, samples=True))
    together = runner.logits(StepPlan(tuple(pieces)))
    alone = torch.cat([runner.logits(StepPlan((piece,))) for piece in pieces])
    check_same(runner, together, alone)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_preempted_sequence_goes_on_as_if_nothing_had_happened(runner, temperature):
    expected = decode_alone(runner, 0, 10, temperature=temperature, max_tokens=12)
    first = make_sequence(0, prompt(10, 0), temperature=temperature, max_tokens=12)
    second = make_sequence(1, prompt(20, 1), max_tokens=12)
    decoder = Decoder(runner, range(BLOCKS), BLOCK_SIZE)
    decoder.step([(first, 10)])
    for _ in range(5):
        decoder.step([(first, 1)])
    decoder.preempt(first)
    decoder.step([(second, 20)])  # takes the blocks that were given up
    decoder.step([(second, 1), (first, 7)])
    decoder.run([second, first])
    assert first.tokens == expected
    assert second.tokens == decode_alone(runner, 1, 20, max_tokens=12)


def test_tokens_depend_on_seed_choice_and_nothing_else_random(runner):
    def tokens(**changes):
        sequence = make_sequence(0, prompt(6), temperature=1.5, **changes)
        Decoder(runner, range(BLOCKS), BLOCK_SIZE).run([sequence])
        return sequence.tokens

    assert tokens(seed=5) == tokens(seed=5)
    assert tokens(seed=5) != tokens(seed=6)
    assert tokens(seed=5) != tokens(seed=5, choice=1)


def test_tokens_come_in_the_order_of_the_plan_from_slices_that_sample(runner):
    expected = [decode_alone(runner, i, length)[length] for i, length in ((0, 7), (2, 5))]
    sequences = [make_sequence(i, prompt(length, i)) for i, length in enumerate([7, 20, 5])]
    Decoder(runner, range(BLOCKS), BLOCK_SIZE).step(
        [(sequences[0], 7), (sequences[1], 11), (sequences[2], 5)]
    )
    assert [sequences[0].tokens[-1], sequences[2].tokens[-1]] == expected
    assert sequences[1].num_output == 0


def test_an_empty_plan_has_an_empty_result(runner):
    assert runner.advance(StepPlan(())) == StepResult(())


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 1), (2, 16), (40, 4)])
def test_warm_up_fits_any_cache_and_tells_how_far_it_is(num_blocks, block_size):
    runner = ModelRunner(SPEC, random_weights(SPEC), num_blocks=num_blocks, block_size=block_size)
    seen = []
    runner.warm_up(seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_warm_up_leaves_nothing_behind_that_matters():
    cold, warm = make_runner(), make_runner()
    warm.warm_up(lambda _: None)
    assert decode_alone(warm, 0, 9) == decode_alone(cold, 0, 9)


def test_a_rehearsal_can_be_repeated_and_must_fit_the_cache():
    runner = make_runner()
    step = runner.rehearse(2, BLOCK_SIZE + 1)
    step()
    step()
    assert decode_alone(runner, 0, 9) == decode_alone(make_runner(), 0, 9)
    with pytest.raises(ValueError, match=f"{BLOCKS + 1} blocks are needed, there are {BLOCKS}"):
        runner.rehearse(BLOCKS + 1, 1)
