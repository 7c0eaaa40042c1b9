"""Logits against transformers, for every kind of Llama that the description can tell of."""

from __future__ import annotations

import pytest
import torch

from chairlift.cluster.model_spec import RopeScaling, RopeSpec
from chairlift.workers.model_runner import ModelRunner
from chairlift.workers.sequence import Slice, StepPlan
from support.cpp_kernels import make_kernels
from support.decoding import make_sequence
from support.llama_models import random_weights, tiny_spec, transformers_model

LONG = 200
BLOCK_SIZE = 8

ROPES = {
    RopeScaling.NONE: {},
    RopeScaling.LINEAR: {"factor": 3.0},
    RopeScaling.DYNAMIC: {"factor": 2.0, "original_max_position_embeddings": 64.0},
    RopeScaling.YARN: {"factor": 4.0, "original_max_position_embeddings": 32.0},
    RopeScaling.LLAMA3: {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64.0,
    },
    RopeScaling.FACTORS: {},
    RopeScaling.LONGROPE: {"attention_factor": 1.2},
}
SHAPES = {
    "multi-head": {"num_kv_heads": 4},
    "grouped": {"num_kv_heads": 2},
    "multi-query": {"num_kv_heads": 1},
    "wide heads": {"head_dim": 20},
    "tied": {"tied_embeddings": True},
    "attention bias": {"attention_bias": True},
    "mlp bias": {"mlp_bias": True},
    "all": {"num_kv_heads": 1, "head_dim": 6, "attention_bias": True, "mlp_bias": True},
}


KERNELS = pytest.mark.parametrize("kernels", ["cpp", "torch"])


@KERNELS
@pytest.mark.parametrize("scaling", RopeScaling)
def test_rotary_scaling(scaling, kernels):
    divisors = (1.0, 1.5, 4.0, 9.0) if scaling is RopeScaling.LONGROPE else ()
    rope = RopeSpec(500.0, 8, scaling, ROPES[scaling], divisors)
    # Transformers stretches dynamic scaling for the present length, Chairlift for the context.
    check(tiny_spec(rope=rope, context_length=LONG), kernels)


@KERNELS
@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES.keys())
def test_shapes(changes, kernels):
    check(tiny_spec(**changes), kernels)


def test_weights_are_taken_over_not_copied():
    spec = tiny_spec()
    weights = random_weights(spec)
    ModelRunner(spec, weights, num_blocks=1, block_size=BLOCK_SIZE)
    assert not weights


def check(spec, kernels):
    if kernels == "cpp":
        make_kernels()  # skips where they cannot be had
    weights = random_weights(spec)
    tokens = torch.randint(spec.vocab_size, (LONG,), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = transformers_model(spec, weights)(tokens[None], logits_to_keep=1).logits[0]
    runner = ModelRunner(
        spec, weights, num_blocks=LONG // BLOCK_SIZE, block_size=BLOCK_SIZE, kernels=kernels
    )
    sequence = make_sequence(0, tokens.tolist())
    sequence.blocks = list(range(LONG // BLOCK_SIZE))[::-1]
    actual = runner.logits(StepPlan((Slice(sequence, 0, LONG, True),)))
    assert expected.std() > 0.5
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
