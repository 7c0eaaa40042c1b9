"""The embedded model's logits, bit for bit: chunks, company, blocks and threads change nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from chairlift.cluster.errors import ModelError
from chairlift.cluster.model_files import read_spec, resolve_model, weight_shapes
from chairlift.workers.kernel_choice import choose_encodings
from chairlift.workers.model_runner import ModelRunner
from chairlift.workers.sequence import Sequence, Slice, StepPlan
from chairlift.workers.weights import load_weights
from support.cpp_kernels import make_kernels
from support.decoding import make_sequence

BLOCK_SIZE, BLOCKS = 16, 512
CHUNKS = [1, 7, 64, 512]

try:
    MODEL = resolve_model("smollm2")
except ModelError as error:
    pytest.skip(str(error), allow_module_level=True)


@pytest.fixture(scope="module", params=["float32", "int8"])
def weights(request):
    kernels = make_kernels()  # skips where they cannot be had
    spec = read_spec(MODEL)
    keep = choose_encodings(request.param, kernels, spec)
    return load_weights(spec, lambda _: None, keep=keep)


def make_runner(weights, num_layers: int, *, threads: int = 2) -> ModelRunner:
    """The whole model, or its first few layers."""
    spec = replace(read_spec(MODEL), num_layers=num_layers)
    return ModelRunner(
        spec,
        {name: weights[name] for name in weight_shapes(spec)},
        num_blocks=BLOCKS,
        block_size=BLOCK_SIZE,
        kernels=make_kernels(threads=threads),
    )


def prompt(length: int, *, seed: int = 0) -> list[int]:
    return torch.randint(49152, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def placed(index: int, tokens: list[int], *, at: int) -> Sequence:
    """A sequence with blocks of its own: every third from ``at`` on."""
    sequence = make_sequence(index, tokens)
    sequence.blocks = [(at + 3 * i) % BLOCKS for i in range(-(-len(tokens) // BLOCK_SIZE))]
    return sequence


def logits_after(runner: ModelRunner, tokens: list[int], chunk: int, *, company: int = 0):
    """Logits after all tokens, computed in chunks; with every one of them run others' tokens."""
    sequence = placed(0, tokens, at=0)
    others = [placed(1 + i, prompt(60, seed=1 + i), at=101 + 24 * i) for i in range(company)]
    logits = None
    bounds = [*range(0, len(tokens), chunk), len(tokens)]
    for step, (start, end) in enumerate(pairwise(bounds)):
        pieces = [
            Slice(other, step % 8 * 7, 1 if index % 2 else 7, samples=True)
            for index, other in enumerate(others)
        ]
        pieces.insert(step % (company + 1), Slice(sequence, start, end - start, samples=True))
        logits = runner.logits(StepPlan(tuple(pieces)))[step % (company + 1)]
    return logits


@pytest.fixture(scope="module")
def few_layers(weights):
    return make_runner(weights, 3)


@pytest.fixture(scope="module")
def expected(few_layers):
    return logits_after(few_layers, prompt(131), 131)


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunks_change_no_bit(few_layers, expected, chunk):
    assert torch.equal(logits_after(few_layers, prompt(131), chunk), expected)


@pytest.mark.parametrize("company", [1, 2, 5, 15])
@pytest.mark.parametrize("chunk", [7, 64, 512])
def test_company_changes_no_bit(few_layers, expected, chunk, company):
    assert torch.equal(logits_after(few_layers, prompt(131), chunk, company=company), expected)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_no_bit(weights, expected, threads):
    runner = make_runner(weights, 3, threads=threads)
    assert torch.equal(logits_after(runner, prompt(131), 64, company=2), expected)


def test_the_whole_model(weights):
    runner = make_runner(weights, 30)
    expected = logits_after(runner, prompt(70), 70)
    for chunk, company in [(1, 0), (7, 3), (64, 15), (512, 1)]:
        assert torch.equal(logits_after(runner, prompt(70), chunk, company=company), expected)
