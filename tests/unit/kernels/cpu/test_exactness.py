"""A row's bits are its own: no company, chunk, block, thread or register width changes them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from chairlift.kernels.cpu import tiles
from chairlift.kernels.cpu.build import Processor
from chairlift.kernels.cpu.cpp_kernels import CppKernels
from chairlift.kernels.interface import Experts
from support.attention_steps import History, Step, make_heads, make_history, new_cache, run
from support.cpp_kernels import make_kernels
from support.mixtures import HIDDEN, make_experts

MOST_ROWS = 70
LENGTH, BLOCK_SIZE = 150, 16
SHAPES = {"grouped": (6, 2, 64), "multi-head": (3, 3, 32), "odd": (4, 2, 6)}

Kernel = Callable[[CppKernels, Tensor], Tensor]


@pytest.fixture(scope="module", params=Processor, ids=lambda kind: kind.name.lower())
def kernels(request):
    return make_kernels(request.param)


def linear(kernels: CppKernels, x: Tensor) -> Tensor:
    """Inputs × outputs such that neither is whole in any tile, and there is a bias."""
    weight, bias, out = random(1, 115, x.shape[1]), random(2, 115), random(3, 1, 115)
    out = out.repeat(len(x), 1)
    kernels.add_linear(x, kernels.pack(weight, bias=bias), out=out)
    return out


def rms_norm(kernels: CppKernels, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.rms_norm(x, random(1, x.shape[1]), 1e-5, out=out)
    return out


def silu(kernels: CppKernels, x: Tensor) -> Tensor:
    out = torch.empty(len(x), x.shape[1] // 2)
    kernels.gated(x, "silu", out=out)
    return out


def gelu(kernels: CppKernels, x: Tensor) -> Tensor:
    out = torch.empty(len(x), x.shape[1] // 2)
    kernels.gated(x, "gelu_tanh", out=out)
    return out


def norm_heads(kernels: CppKernels, x: Tensor) -> Tensor:
    """Four heads that are no whole vectors."""
    heads = make_heads(2, 1, x.shape[1] // 4)
    out = x[:, : heads.width].clone(memory_format=torch.contiguous_format)
    query, key = random(1, heads.head_dim), random(2, heads.head_dim)
    kernels.norm_heads(out, heads, query, key, 1e-5)
    return out


def soft_cap(kernels: CppKernels, x: Tensor) -> Tensor:
    out = 2 * x
    kernels.soft_cap(out, 3.0)
    return out


BY_ROW = pytest.mark.parametrize("kernel", [linear, rms_norm, silu, gelu, norm_heads, soft_cap])


@BY_ROW
def test_a_row_is_the_same_in_any_batch(kernels, kernel):
    x = random(0, MOST_ROWS, 202)
    alone = torch.cat([kernel(kernels, row[None]) for row in x])
    for rows in range(1, MOST_ROWS + 1):
        for first in {0, (MOST_ROWS - rows) // 2, MOST_ROWS - rows}:
            batch = slice(first, first + rows)
            assert torch.equal(kernel(kernels, x[batch]), alone[batch]), (rows, first)


@BY_ROW
@pytest.mark.parametrize("rows", [1, 3, 13, 70, 300])
def test_rows_are_the_same_on_any_number_of_threads(kernel, rows):
    x = random(0, rows, 1000)
    expected = kernel(make_kernels(threads=1), x)
    for threads in (2, 3, 4):
        assert torch.equal(kernel(make_kernels(threads=threads), x), expected)


@BY_ROW
@pytest.mark.parametrize("rows", [1, 2, 7, 12, 70])
def test_rows_are_the_same_on_avx2_and_avx512(kernel, rows):
    x = random(0, rows, 1000)
    wide, narrow = make_kernels(Processor.AVX512), make_kernels(Processor.AVX2)
    assert torch.equal(kernel(wide, x), kernel(narrow, x))


def mix(kernels: CppKernels, mixture: Experts, x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    kernels.experts(x, mixture, out=out)
    return out


def test_a_rows_experts_do_not_depend_on_the_batch(kernels):
    mixture, x = make_experts(kernels, 21, 5, normalise=True), random(0, MOST_ROWS, HIDDEN)
    alone = torch.cat([mix(kernels, mixture, row[None]) for row in x])
    for rows in (2, 5, 16, 33, MOST_ROWS):
        for first in {0, (MOST_ROWS - rows) // 2, MOST_ROWS - rows}:
            batch = slice(first, first + rows)
            assert torch.equal(mix(kernels, mixture, x[batch]), alone[batch])


def test_experts_are_the_same_on_avx2_and_avx512():
    x, found = random(0, MOST_ROWS, HIDDEN), []
    for kind in (Processor.AVX512, Processor.AVX2):
        kernels = make_kernels(kind)
        found.append(mix(kernels, make_experts(kernels, 21, 5, normalise=True), x))
    assert torch.equal(*found)


KINDS = {
    **{name: make_heads(*shape) for name, shape in SHAPES.items()},
    "window": make_heads(3, 1, 32, window=40),
    "window and cap": make_heads(4, 2, 6, window=67, soft_cap=3.0, scale=0.3),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def heads(request):
    return request.param


@pytest.fixture(params=[torch.float32, torch.float16], ids=["float32", "float16"])
def dtype(request):
    return request.param


def attend(
    kernels, heads, dtype, history: History, cuts: list[int], *, block_size: int = BLOCK_SIZE
):
    """All positions, in chunks that end at ``cuts`` and at the end."""
    cache = new_cache(kernels, heads, block_size, dtype)
    chunks = [
        run(kernels, heads, cache, block_size, [Step(history, start, end)])[0]
        for start, end in pairwise([0, *cuts, len(history.qkv)])
    ]
    return torch.cat(chunks)


def test_chunks_change_nothing(kernels, heads, dtype):
    history = make_history(heads, LENGTH, BLOCK_SIZE, seed=0)
    whole = attend(kernels, heads, dtype, history, [])
    for cut in range(1, LENGTH):
        assert torch.equal(attend(kernels, heads, dtype, history, [cut]), whole), cut
    assert torch.equal(attend(kernels, heads, dtype, history, list(range(1, LENGTH))), whole)
    assert torch.equal(attend(kernels, heads, dtype, history, list(range(7, LENGTH, 7))), whole)


def test_where_blocks_lie_changes_nothing(kernels, heads, dtype):
    histories = [make_history(heads, LENGTH, BLOCK_SIZE, seed=seed) for seed in (0, 1)]
    moved = History(histories[0].qkv, histories[1].blocks)
    assert torch.equal(
        attend(kernels, heads, dtype, histories[0], [64]),
        attend(kernels, heads, dtype, moved, [64]),
    )


@pytest.mark.parametrize("block_size", [1, 8, 24, 64])
def test_the_size_of_blocks_changes_nothing(kernels, heads, dtype, block_size):
    sixteen = make_history(heads, LENGTH, BLOCK_SIZE, seed=0)
    other = make_history(heads, LENGTH, block_size, seed=0)
    assert torch.equal(
        attend(kernels, heads, dtype, sixteen, [40]),
        attend(kernels, heads, dtype, other, [40], block_size=block_size),
    )


def test_a_reused_prefix_changes_nothing(kernels, heads, dtype):
    """Two sequences share the blocks of their first 48 positions; one computed them."""
    first = make_history(heads, LENGTH, BLOCK_SIZE, seed=0)
    second = make_history(heads, LENGTH, BLOCK_SIZE, seed=1)
    second.qkv[:48] = first.qkv[:48]
    reusing = History(second.qkv, first.blocks[:3] + second.blocks[3:])
    cache = new_cache(kernels, heads, BLOCK_SIZE, dtype)
    run(kernels, heads, cache, BLOCK_SIZE, [Step(first, 0, LENGTH)])
    found = run(kernels, heads, cache, BLOCK_SIZE, [Step(reusing, 48, LENGTH)])[0]
    assert torch.equal(found, attend(kernels, heads, dtype, second, [])[48:])


def test_company_changes_nothing(kernels, heads, dtype):
    ends = [LENGTH, 1, 17, 64, 65, 100, 3]
    starts = [99, 0, 16, 0, 64, 50, 0]
    steps = [
        Step(make_history(heads, end, BLOCK_SIZE, seed=seed), start, end)
        for seed, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    cache = new_cache(kernels, heads, BLOCK_SIZE, dtype)
    earlier = [Step(step.history, 0, step.start) for step in steps if step.start]
    run(kernels, heads, cache, BLOCK_SIZE, earlier)
    together = run(kernels, heads, cache, BLOCK_SIZE, steps)
    for step, found in zip(steps, together, strict=True):
        alone = attend(kernels, heads, dtype, step.history, [])[step.start :]
        assert torch.equal(found, alone)


def test_what_others_left_in_the_cache_changes_nothing(kernels, heads, dtype):
    """Not even what is not a number: it is not multiplied by zero, but never read."""
    history = make_history(heads, LENGTH, BLOCK_SIZE, seed=0)
    cache = new_cache(kernels, heads, BLOCK_SIZE, dtype)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    found = run(kernels, heads, cache, BLOCK_SIZE, [Step(history, 0, LENGTH)])[0]
    assert torch.equal(found, attend(kernels, heads, dtype, history, []))


@pytest.mark.parametrize("pairs", [1, 7, 1000])
def test_tiles_change_nothing(kernels, heads, dtype, pairs, monkeypatch):
    history = make_history(heads, LENGTH, BLOCK_SIZE, seed=0)
    expected = attend(kernels, heads, dtype, history, [])
    monkeypatch.setattr(tiles, "_TILE_PAIRS", pairs)
    assert torch.equal(attend(kernels, heads, dtype, history, []), expected)


def test_attention_is_the_same_on_any_number_of_threads(heads, dtype):
    history = make_history(heads, LENGTH, BLOCK_SIZE, seed=0)
    expected = attend(make_kernels(threads=1), heads, dtype, history, [149])
    for threads in (2, 3, 4):
        assert torch.equal(
            attend(make_kernels(threads=threads), heads, dtype, history, [149]), expected
        )


def test_attention_is_the_same_on_avx2_and_avx512(heads, dtype):
    history = make_history(heads, LENGTH, BLOCK_SIZE, seed=0)
    wide, narrow = make_kernels(Processor.AVX512), make_kernels(Processor.AVX2)
    assert torch.equal(
        attend(wide, heads, dtype, history, []), attend(narrow, heads, dtype, history, [80])
    )


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))
