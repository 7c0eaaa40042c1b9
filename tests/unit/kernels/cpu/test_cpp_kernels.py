"""Every kernel, on every kind of processor, against its reference in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from chairlift.kernels import reference
from chairlift.kernels.cpu.build import Processor
from support.attention_steps import Step, make_heads, make_history, new_cache, run, step_rows
from support.cpp_kernels import make_kernels
from support.mixtures import check_experts, check_ties

ROWS = [1, 2, 5, 12, 13, 70, 200]
WIDTHS = [1, 15, 16, 576]


@pytest.fixture(scope="module", params=Processor, ids=lambda kind: kind.name.lower())
def kernels(request):
    return make_kernels(request.param)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (3, 40), (64, 16), (577, 130)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(kernels, rows, inputs, outputs, has_bias):
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs) / inputs**0.5
    bias = torch.randn(outputs) if has_bias else None
    expected = x.double() @ weight.double().T + (bias.double() if has_bias else 0.0)
    layer, out = kernels.pack(weight, bias=bias), torch.full((rows, outputs), torch.nan)
    kernels.linear(x, layer, out=out)
    check(out, expected)
    kernels.add_linear(x, layer, out=out)
    check(out, 2 * expected)


def test_linear_of_no_rows(kernels):
    kernels.linear(torch.empty(0, 8), kernels.pack(torch.randn(5, 8)), out=torch.empty(0, 5))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_embed(kernels, rows, width):
    matrix, tokens = torch.randn(50, width), torch.randint(50, (rows,))
    out = torch.empty(rows, width)
    kernels.embed(tokens, kernels.pack(matrix), out=out)
    assert torch.equal(out, matrix[tokens])


@pytest.mark.parametrize("token", [-1, 50])
def test_embed_refuses_tokens_that_are_not_there(kernels, token):
    table = kernels.pack(torch.randn(50, 8))
    with pytest.raises(IndexError, match="0 … 49"):
        kernels.embed(torch.tensor([0, token]), table, out=torch.empty(2, 8))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm(kernels, rows, width):
    x, weight, out = 5 * torch.randn(rows, width), torch.randn(width), torch.empty(rows, width)
    kernels.rms_norm(x, weight, 1e-5, out=out)
    check(out, reference.rms_norm(x.double(), weight.double(), 1e-5))


def test_rms_norm_of_zeros_is_zero(kernels):
    out = torch.empty(2, 8)
    kernels.rms_norm(torch.zeros(2, 8), torch.ones(8), 1e-5, out=out)
    assert not out.any()


def test_rms_norm_in_place(kernels):
    x, weight = 5 * torch.randn(7, 70), torch.randn(70)
    expected = reference.rms_norm(x.double(), weight.double(), 1e-5)
    kernels.rms_norm(x, weight, 1e-5, out=x)
    check(x, expected)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", [(6, 2, 64), (5, 1, 6)])
def test_norm_heads(kernels, rows, shape):
    heads = make_heads(*shape)
    qkv, query, key = torch.randn(rows, heads.width), *torch.randn(2, heads.head_dim)
    by_head = qkv.double().view(rows, -1, heads.head_dim)
    normed = reference.norm_heads(
        by_head[:, : -heads.num_kv_heads], query.double(), key.double(), heads.num_heads, 1e-5
    )
    expected = torch.cat((normed, by_head[:, -heads.num_kv_heads :]), 1).flatten(1)
    kernels.norm_heads(qkv, heads, query, key, 1e-5)
    check(qkv, expected)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated(kernels, rows, width, activation):
    gate_up, out = 4 * torch.randn(rows, 2 * width), torch.empty(rows, width)
    kernels.gated(gate_up, activation, out=out)
    check(out, reference.gated(gate_up.double(), activation))


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_of_extreme_and_missing_numbers(kernels, activation):
    gate = torch.tensor([0.0, -0.0, 1e-30, 30.0, 200.0, -30.0, -88.0, -200.0, torch.nan])
    out = torch.empty(1, len(gate))
    kernels.gated(torch.cat([gate, torch.ones(len(gate))])[None], activation, out=out)
    check(out[0, :-1], reference.gated(torch.cat((gate[:-1], torch.ones(8))).double(), activation))
    assert out[0, -1].isnan()


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (2, 9000)])
def test_soft_cap(kernels, shape):
    logits = 40 * torch.randn(shape)
    expected = reference.soft_cap(logits.double(), 30.0)
    kernels.soft_cap(logits, 30.0)
    check(logits, expected)


def test_soft_cap_is_as_precise_near_zero_as_far_away(kernels):
    x = torch.cat([torch.linspace(-20, 20, 4001), torch.logspace(-12, 0, 500)])
    found = x.clone()
    kernels.soft_cap(found, 1.0)
    torch.testing.assert_close(found.double(), x.double().tanh(), rtol=3e-7, atol=0)


def test_soft_cap_of_extreme_and_missing_numbers(kernels):
    x = torch.tensor([[1e30, -1e30, torch.inf, -torch.inf, torch.nan, 0.0]])
    kernels.soft_cap(x, 2.0)
    expected = torch.tensor([[2.0, -2.0, 2.0, -2.0, torch.nan, 0.0]])
    torch.testing.assert_close(x, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("experts", "per_token"), [(3, 1), (8, 2), (21, 5), (4, 4)])
def test_experts(kernels, rows, normalise, experts, per_token):
    check_experts(kernels, rows, experts, per_token, normalise)


def test_of_equal_experts_the_first_are_taken(kernels):
    check_ties(kernels)


BATCHES = {
    "first token": [(0, 1)],
    "one decoding": [(8, 9)],
    "a whole span": [(63, 64)],
    "one more": [(64, 65)],
    "decoding": [(2, 3), (16, 17), (15, 16), (149, 150)],
    "whole prompt": [(0, 150)],
    "last chunk": [(24, 29)],
    "chunk over spans": [(60, 140)],
    "mixed": [(11, 12), (0, 7), (30, 31), (12, 22), (1, 2), (97, 140)],
}
SHAPES = {
    "multi-head": (4, 4, 16),
    "grouped": (6, 2, 64),
    "nine to three": (9, 3, 64),
    "multi-query": (5, 1, 32),
    "odd": (4, 2, 6),
    "wide": (2, 1, 80),
    "wider than a tile": (50, 1, 16),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_attention(kernels, batch, shape):
    check_attention(kernels, batch, shape, block_size=16)


@pytest.mark.parametrize("block_size", [1, 5, 32, 48])
@pytest.mark.parametrize("shape", [SHAPES["grouped"], SHAPES["odd"]])
def test_attention_over_blocks_of_any_size(kernels, shape, block_size):
    check_attention(kernels, BATCHES["mixed"], shape, block_size)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("block_size", [16, 5])
def test_attention_to_a_cache_in_half_precision(kernels, batch, block_size):
    check_attention(kernels, batch, SHAPES["grouped"], block_size, torch.float16)


@pytest.mark.parametrize("head_dim", [8, 16])
def test_a_cache_in_half_precision_holds_the_nearest_numbers(kernels, head_dim):
    heads = make_heads(1, 1, head_dim)
    bits = torch.arange(0, 1 << 15, 16).to(torch.int16)
    exact, next_one = bits.view(torch.float16).float(), (bits + 1).view(torch.float16).float()
    middle = (exact + next_one) / 2
    numbers = torch.cat((exact, middle, middle * (1 - 1e-6), middle * (1 + 1e-6)))
    numbers = torch.cat((numbers, -numbers, torch.tensor([1e9, -1e9, 1e-9, -1e-9] * 4)))
    history = make_history(heads, 512, 16, seed=0)
    expected = numbers.clamp(-65504, 65504).half()
    for start in range(0, len(numbers) - 512 * head_dim + 1, 512 * head_dim):
        part = slice(start, start + 512 * head_dim)
        history.qkv[:, 2 * head_dim :] = numbers[part].view(512, head_dim)
        cache = new_cache(kernels, heads, 16, torch.float16)
        run(kernels, heads, cache, 16, [Step(history, 0, 512)])
        found = cache.values[list(history.blocks), 0].flatten()
        torch.testing.assert_close(found, expected[part], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("window", [1, 5, 64, 100, 500])
def test_attention_with_a_window(kernels, batch, window):
    check_attention(kernels, batch, SHAPES["multi-query"], 16, window=window)


@pytest.mark.parametrize("window", [3, 70])
def test_attention_with_a_window_over_blocks_of_any_size(kernels, window):
    check_attention(kernels, BATCHES["mixed"], SHAPES["odd"], 5, window=window)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("window", [None, 40])
def test_attention_with_a_soft_cap_and_a_scale(kernels, batch, window):
    check_attention(kernels, batch, SHAPES["odd"], 16, window=window, soft_cap=2.0, scale=0.2)


def check_attention(kernels, batch, shape, block_size, dtype=torch.float32, **options):
    heads = make_heads(*shape, rotated=4, **options)
    steps = [
        Step(make_history(heads, end, block_size, seed=index), start, end)
        for index, (start, end) in enumerate(batch)
    ]
    cache = new_cache(kernels, heads, block_size, dtype)
    before = [Step(step.history, 0, step.start) for step in steps if step.start]
    if before:
        run(kernels, heads, cache, block_size, before)
    actual = run(kernels, heads, cache, block_size, steps)
    for step, found in zip(steps, actual, strict=True):
        expected = expected_attention(heads, step, block_size, dtype)
        check(found, expected, 1e-5 if dtype == torch.float32 else 2e-3)


def expected_attention(heads, step, block_size, dtype):
    """The reference on its own cache, with rotated keys of all positions up to the step's end."""
    length = step.end
    by_head = step.history.qkv[:length].double().view(length, -1, heads.head_dim)
    stored = heads.num_kv_heads
    rotated = reference.apply_rope(
        by_head[:, :-stored], heads.cos[:length].double(), heads.sin[:length].double()
    )
    rows = step_rows([Step(step.history, 0, length)], block_size)
    shape = (int(rows.block_tables.max()) + 1, block_size, stored, heads.head_dim)
    caches = torch.zeros(shape, dtype=torch.double), torch.zeros(shape, dtype=torch.double)
    for cache, new in zip(caches, (rotated, by_head), strict=True):
        reference.kv_write(cache, new[:, -stored:].to(dtype).double(), rows.slots)
    attended = reference.paged_attention(
        rotated[step.start :, : heads.num_heads],
        caches,
        rows.block_tables,
        rows.context_lens,
        torch.tensor([length - step.start]),
        scale=heads.scale,
        window=heads.window,
        cap=heads.soft_cap,
    )
    return attended.flatten(1)


def test_positions_beyond_the_last_are_refused(kernels):
    heads = make_heads(2, 1, 8)
    rows = step_rows([Step(make_history(heads, 9, 16, seed=0), 8, 9)], 16)
    with pytest.raises(IndexError, match="511"):
        kernels.attention(heads, replace(rows, positions=rows.positions + 504))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.empty(3, 9), r"\[3, 8\]"),
        (torch.empty(3, 8, dtype=torch.double), "float64"),
        (torch.empty(8, 3).T, "contiguous"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(kernels, x, message):
    layer = kernels.pack(torch.randn(5, 8))
    with pytest.raises(ValueError, match=message):
        kernels.linear(x, layer, out=torch.empty(3, 5))


def check(actual, expected, tolerance=1e-5):
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=tolerance, atol=tolerance)
