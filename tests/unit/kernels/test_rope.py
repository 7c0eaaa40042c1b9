from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from chairlift.kernels.rope import rope_angles, rope_frequencies

DIM, THETA, CONTEXT = 64, 100000.0, 4096
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 1024}


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("linear", {"factor": 2.5}),
        ("llama3", LLAMA3),
        ("llama3", LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 256}),
        ("yarn", YARN),
        ("yarn", YARN | {"truncate": False}),
        ("yarn", YARN | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 0.9}),
        ("yarn", YARN | {"mscale": 0.7, "mscale_all_dim": 1.2}),
        ("yarn", YARN | {"factor": 1.0}),
    ],
)
def test_frequencies_are_those_of_transformers(kind, parameters):
    frequencies, factor = rope_frequencies(
        THETA, DIM, scaling=kind, parameters=parameters, max_positions=CONTEXT
    )
    expected, expected_factor = ROPE_INIT_FUNCTIONS[kind](config(kind, parameters, CONTEXT), "cpu")
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor)


@pytest.mark.parametrize("trained", [1024, CONTEXT])
def test_dynamic_scaling_is_that_of_transformers_at_the_longest_context(trained):
    parameters = {"factor": 4.0, "original_max_position_embeddings": trained}
    frequencies, _ = rope_frequencies(
        THETA, DIM, scaling="dynamic", parameters=parameters, max_positions=CONTEXT
    )
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](
        config("dynamic", {"factor": 4.0}, trained), "cpu", seq_len=CONTEXT
    )
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)


def test_dynamic_scaling_changes_nothing_within_the_trained_context():
    plain, _ = rope_frequencies(THETA, DIM, scaling="none", parameters={}, max_positions=CONTEXT)
    dynamic, _ = rope_frequencies(
        THETA, DIM, scaling="dynamic", parameters={"factor": 4.0}, max_positions=CONTEXT
    )
    assert torch.equal(plain, dynamic)


def test_divisors_are_those_of_transformers():
    divisors = [1.0 + 0.3 * pair for pair in range(DIM // 2)]
    factors = {"long_factor": divisors, "short_factor": divisors}
    expected, factor = ROPE_INIT_FUNCTIONS["longrope"](
        config("longrope", factors | {"original_max_position_embeddings": 512}, CONTEXT), "cpu"
    )
    frequencies, ours = rope_frequencies(
        THETA,
        DIM,
        scaling="longrope",
        parameters={"attention_factor": factor},
        max_positions=CONTEXT,
        divisors=divisors,
    )
    assert torch.equal(frequencies, expected)
    assert (ours, factor) == (factor, pytest.approx((1 + 3 / 9) ** 0.5))  # log 8 / log 512


def test_plain_frequencies_fall_from_one_to_almost_the_inverse_of_theta():
    frequencies, factor = rope_frequencies(
        THETA, DIM, scaling="none", parameters={}, max_positions=CONTEXT
    )
    expected = [THETA ** (-2 * pair / DIM) for pair in range(DIM // 2)]
    torch.testing.assert_close(frequencies, torch.tensor(expected))
    assert factor == 1.0


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'spiral'"):
        rope_frequencies(THETA, DIM, scaling="spiral", parameters={}, max_positions=CONTEXT)


def test_angles_are_positions_times_frequencies():
    cos, sin = rope_angles(torch.tensor([1.0, 0.25]), torch.tensor([0, 2]), factor=3.0)
    torch.testing.assert_close(cos, 3 * torch.tensor([[0.0, 0.0], [2.0, 0.5]]).cos())
    torch.testing.assert_close(sin, 3 * torch.tensor([[0.0, 0.0], [2.0, 0.5]]).sin())


def config(kind, parameters, context):
    return LlamaConfig(
        hidden_size=4 * DIM,
        num_attention_heads=4,
        max_position_embeddings=context,
        rope_parameters={"rope_type": kind, "rope_theta": THETA, **parameters},
    )
