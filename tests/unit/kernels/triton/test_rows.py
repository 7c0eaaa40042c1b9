"""Kernels that take rows one by one: norms, activations, and writing to the cache."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from chairlift.kernels import reference
from chairlift.kernels.interface import AttentionRows
from chairlift.kernels.triton.triton_kernels import TritonKernels
from support.attention_steps import make_heads


@pytest.fixture
def kernels(device, dtype):
    return TritonKernels(device, dtype, exact=True)


def random(seed, *shape, like):
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return numbers.to(like.device, like.dtype)


@pytest.mark.parametrize(("rows", "width"), [(1, 7), (5, 130), (2, 2048)])
def test_rms_norm(rows, width, kernels, tolerance):
    x, weight = random(0, rows, width, like=kernels), random(1, width, like=kernels)
    out = torch.empty_like(x)
    kernels.rms_norm(x, weight, 1e-5, out=out)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-5)
    torch.testing.assert_close(out.double(), expected, **tolerance)
    alone = torch.empty_like(x[:1])
    kernels.rms_norm(x[-1:], weight, 1e-5, out=alone)
    assert torch.equal(alone[0], out[-1])


def test_norm_heads(kernels, tolerance):
    heads = make_heads(6, 2, 24)
    qkv = random(0, 3, heads.width, like=kernels)
    query, key = random(1, 2, 24, like=kernels)
    by_head = qkv.view(3, 10, 24).double()
    expected = reference.norm_heads(by_head[:, :8], query.double(), key.double(), 6, 1e-6)
    kernels.norm_heads(qkv, heads, query, key, 1e-6)
    expected = torch.cat((expected, by_head[:, 8:]), 1)
    torch.testing.assert_close(qkv.view(3, 10, 24).double(), expected, **tolerance)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(("rows", "width"), [(1, 5), (3, 1100)])
def test_gated(activation, rows, width, kernels, tolerance):
    gate_up = 4 * random(0, rows, 2 * width, like=kernels)
    gate_up[0, :2] = torch.tensor([60.0, -200.0])
    out = torch.empty_like(gate_up[:, :width])
    kernels.gated(gate_up, activation, out=(out := out.contiguous()))
    torch.testing.assert_close(
        out.double(), reference.gated(gate_up.double(), activation), **tolerance
    )


def test_soft_cap(device):
    logits = 40 * torch.randn(3, 700, generator=torch.Generator().manual_seed(0)).to(device)
    logits[0, :3] = torch.tensor([1e4, -1e4, 0.0])
    expected = reference.soft_cap(logits.double(), 30.0)
    TritonKernels(device, torch.float32, exact=True).soft_cap(logits, 30.0)
    torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rotated", [24, 16])
@pytest.mark.parametrize("shape", [(6, 2, 24), (3, 3, 24)])
def test_rotates_and_stores(rotated, shape, kernels, tolerance):
    heads = make_heads(*shape, rotated=rotated)
    cos, sin = heads.cos.to(kernels.device), heads.sin.to(kernels.device)
    heads = dataclasses.replace(heads, cos=cos, sin=sin)
    positions = torch.tensor([5, 0, 300, 301], device=kernels.device)
    slots = torch.tensor([17, 4, 63, 0], device=kernels.device)
    nothing = torch.zeros(1, dtype=torch.int64, device=kernels.device)
    ones = nothing + 1
    rows = AttentionRows(positions, slots, nothing[None], ones, ones, 16, 1, 1)
    cache = kernels.new_cache(heads, 4, 16, kernels.dtype)
    qkv = random(0, 4, heads.width, like=kernels)
    by_head = qkv.view(4, -1, heads.head_dim).double()
    stored = heads.num_kv_heads
    expected = reference.apply_rope(by_head[:, :-stored], cos[positions], sin[positions])
    kernels.attention(heads, rows).store(qkv, cache)
    found = qkv.view(4, -1, heads.head_dim)
    torch.testing.assert_close(found[:, :-stored].double(), expected, **tolerance)
    assert torch.equal(found[:, -stored:].double(), by_head[:, -stored:])
    keys, values = torch.zeros_like(cache.keys), torch.zeros_like(cache.values)
    reference.kv_write(keys, found[:, -2 * stored : -stored], slots)
    reference.kv_write(values, found[:, -stored:], slots)
    assert torch.equal(cache.keys, keys) and torch.equal(cache.values, values)
