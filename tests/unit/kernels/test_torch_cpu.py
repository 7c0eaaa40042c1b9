"""Every kernel against its reference in float64."""

from __future__ import annotations

import pytest
import torch

from chairlift.kernels import reference, torch_cpu

ROWS = [1, 2, 7, 33]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [8, 576])
def test_rms_norm(rows, width):
    x, weight = 5 * torch.randn(rows, width), torch.randn(width)
    check(torch_cpu.rms_norm(x, weight, 1e-5), reference.rms_norm(*double(x, weight), 1e-5))


def test_rms_norm_of_zeros_is_zero():
    assert not torch_cpu.rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-5).any()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dim", [4, 16])
def test_apply_rope_on_a_slice_of_fused_projections(rows, dim):
    projections = torch.randn(rows, 5, 16)
    cos, sin = torch.randn(rows, dim // 2), torch.randn(rows, dim // 2)
    x = projections[:, :3]
    check(torch_cpu.apply_rope(x, cos, sin), reference.apply_rope(*double(x, cos, sin)))


@pytest.mark.parametrize("rows", ROWS)
def test_kv_write(rows):
    cache = torch.randn(20, 4, 2, 8)
    new, slots = torch.randn(rows, 5, 8)[:, 3:], torch.randperm(80)[:rows]
    expected = cache.clone()
    reference.kv_write(expected, new, slots)
    torch_cpu.kv_write(cache, new, slots)
    assert torch.equal(cache, expected)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated(rows, activation):
    gate_up = 4 * torch.randn(rows, 96)
    check(torch_cpu.gated(gate_up, activation), reference.gated(gate_up.double(), activation))


def test_linear_adds_its_bias():
    x, weight, bias = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)
    check(torch_cpu.linear(x, weight, bias), x.double() @ weight.double().T + bias)


def double(*tensors):
    return [tensor.double() for tensor in tensors]


def check(actual, expected):
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-5, atol=1e-5)
