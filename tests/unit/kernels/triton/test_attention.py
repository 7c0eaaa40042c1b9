from __future__ import annotations

import dataclasses

import pytest
import torch

from chairlift.kernels import reference
from chairlift.kernels.triton import attention
from chairlift.kernels.triton.triton_kernels import TritonKernels
from support.attention_steps import History, Step, make_heads, make_history, step_rows

BLOCK_SIZE = 16
# Query heads, K/V heads, elements of a head.
GROUPED = (6, 2, 16)
NARROW = (3, 1, 16)
CASES = {
    "plain": (GROUPED, {}),
    "window": (GROUPED, {"window": 37}),
    "soft cap": (GROUPED, {"soft_cap": 5.0, "scale": 0.3}),
    "one K/V head": ((4, 1, 24), {"window": 9, "soft_cap": 3.0}),
    "multi-head": ((2, 2, 32), {}),
}


@pytest.fixture(autouse=True)
def short_splits(request, monkeypatch):
    """So that contexts of some dozen positions have several; as many as whole tiles have."""
    wide = "dtype" in request.fixturenames and request.getfixturevalue("dtype") != torch.float32
    monkeypatch.setattr(attention, "SPLIT", 64 if wide else 32)


def run(kernels, heads, cache, steps, *, block_size=BLOCK_SIZE):
    """One step of them all; the attention of each."""
    device, dtype = kernels.device, kernels.dtype
    rows = step_rows(steps, block_size)
    names = ("positions", "slots", "block_tables", "context_lens", "query_lens")
    rows = dataclasses.replace(rows, **{name: getattr(rows, name).to(device) for name in names})
    qkv = torch.cat([step.history.qkv[step.start : step.end] for step in steps]).to(device, dtype)
    out = torch.full((len(qkv), heads.num_heads * heads.head_dim), torch.nan).to(device, dtype)
    prepared = kernels.attention(heads, rows)
    prepared.store(qkv, cache)
    prepared.attend(qkv, cache, out=out)
    return list(out.split([step.end - step.start for step in steps])), qkv, rows


def prepare(device, dtype, shape, **scoring):
    kernels = TritonKernels(device, dtype, exact=True)
    heads = make_heads(*shape, **scoring)
    on_device = {"cos": heads.cos.to(device), "sin": heads.sin.to(device)}
    return kernels, dataclasses.replace(heads, **on_device)


def new_cache(kernels, heads, block_size=BLOCK_SIZE, dtype=None):
    blocks = 8 * (512 // block_size)
    return kernels.new_cache(heads, blocks, block_size, dtype or kernels.dtype)


@pytest.mark.parametrize(("shape", "scoring"), CASES.values(), ids=CASES.keys())
def test_a_mixed_batch_equals_the_reference(shape, scoring, dtype, device, tolerance):
    """A chunk of a prompt, a whole one, drafts to check, decoded rows; contexts of many splits."""
    kernels, heads = prepare(device, dtype, shape, **scoring)
    spans = [(30, 43), (0, 6), (75, 78), (0, 1), (95, 96), (32, 33)]
    steps = [
        Step(make_history(heads, end, BLOCK_SIZE, seed=seed), start, end)
        for seed, (start, end) in enumerate(spans)
    ]
    cache = new_cache(kernels, heads)
    for tensor, seed in ((cache.keys, 1), (cache.values, 2)):
        tensor.copy_(2 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed)))
    found, qkv, rows = run(kernels, heads, cache, steps)
    query = qkv.view(len(qkv), -1, heads.head_dim)[:, : heads.num_heads].double()
    expected = reference.paged_attention(
        query,
        (cache.keys.double(), cache.values.double()),
        rows.block_tables,
        rows.context_lens,
        rows.query_lens,
        scale=heads.scale,
        window=heads.window,
        cap=heads.soft_cap,
    )
    torch.testing.assert_close(torch.cat(found).double(), expected.flatten(1), **tolerance)


def whole(kernels, heads, history, cuts=(), *, block_size=BLOCK_SIZE, dtype=None):
    """All positions, in chunks that end at the cuts and at the end."""
    cache = new_cache(kernels, heads, block_size, dtype)
    ends = [*cuts, len(history.qkv)]
    chunks = [
        run(kernels, heads, cache, [Step(history, start, end)], block_size=block_size)[0][0]
        for start, end in zip([0, *cuts], ends, strict=True)
    ]
    return torch.cat(chunks)


EXACTLY = pytest.mark.parametrize(
    "scoring", [{}, {"window": 19, "soft_cap": 5.0}], ids=["plain", "window"]
)


@EXACTLY
def test_chunks_change_nothing(scoring, exact_dtype, device):
    kernels, heads = prepare(device, exact_dtype, NARROW, **scoring)
    # The interpreter is slow; a GPU has time for more splits.
    length = 45 if device.type == "cpu" else 300
    history = make_history(heads, length, BLOCK_SIZE, seed=0)
    expected = whole(kernels, heads, history)
    for cuts in ([1], [32, length - 1], [7, 33, 34]):
        assert torch.equal(whole(kernels, heads, history, cuts), expected), cuts


@EXACTLY
def test_company_changes_nothing(scoring, exact_dtype, device):
    kernels, heads = prepare(device, exact_dtype, NARROW, **scoring)
    spans = [(20, 37), (0, 1), (32, 33), (25, 28)]
    steps = [
        Step(make_history(heads, end, BLOCK_SIZE, seed=seed), start, end)
        for seed, (start, end) in enumerate(spans)
    ]
    cache = new_cache(kernels, heads)
    run(kernels, heads, cache, [Step(step.history, 0, step.start) for step in steps if step.start])
    together, _, _ = run(kernels, heads, cache, steps)
    for step, found in zip(steps, together, strict=True):
        assert torch.equal(found, whole(kernels, heads, step.history)[step.start :])


def test_whether_splits_are_spread_over_programs_changes_nothing(exact_dtype, device, monkeypatch):
    kernels, heads = prepare(device, exact_dtype, NARROW)
    history = make_history(heads, 200, BLOCK_SIZE, seed=0)
    cache = new_cache(kernels, heads)
    for tensor, seed in ((cache.keys, 1), (cache.values, 2)):
        tensor.copy_(2 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed)))
    found = []
    for programs in (1000, 6, 1):  # one split a program, several, all
        monkeypatch.setattr(attention, "_PROGRAMS", programs)
        found.append(run(kernels, heads, cache, [Step(history, 197, 200)])[0][0])
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_what_a_window_hides_is_never_read(device):
    kernels, heads = prepare(device, torch.float32, NARROW, window=20)
    history = make_history(heads, 130, BLOCK_SIZE, seed=0)
    cache = new_cache(kernels, heads)
    run(kernels, heads, cache, [Step(history, 96, 129)])
    for block in history.blocks[:6]:  # positions 0 … 95; the window starts at 110
        cache.keys[block] = cache.values[block] = torch.nan
    found = run(kernels, heads, cache, [Step(history, 129, 130)])[0][0]
    assert found.isfinite().all()


def test_where_blocks_lie_and_how_large_they_are_changes_nothing(exact_dtype, device):
    kernels, heads = prepare(device, exact_dtype, NARROW)
    history = make_history(heads, 36, BLOCK_SIZE, seed=0)
    expected = whole(kernels, heads, history, [20])
    moved = History(history.qkv, make_history(heads, 36, BLOCK_SIZE, seed=1).blocks)
    assert torch.equal(whole(kernels, heads, moved, [20]), expected)
    for block_size in (1, 24):
        other = make_history(heads, 36, block_size, seed=0)
        assert torch.equal(whole(kernels, heads, other, [20], block_size=block_size), expected)


def test_what_others_left_in_the_cache_changes_nothing(device):
    """Not even what is not a number: it is not multiplied by zero, but never read."""
    kernels, heads = prepare(device, torch.float32, NARROW)
    history = make_history(heads, 40, BLOCK_SIZE, seed=0)
    cache = new_cache(kernels, heads)
    cache.keys.fill_(torch.nan)
    cache.values.fill_(torch.nan)
    found = run(kernels, heads, cache, [Step(history, 0, 40)])[0][0]
    assert torch.equal(found, whole(kernels, heads, history))


def test_a_cache_of_eight_bits_is_read_as_what_it_holds(exact_dtype, device):
    kernels, heads = prepare(device, exact_dtype, NARROW)
    heads = dataclasses.replace(heads, cos=0 * heads.cos + 1, sin=0 * heads.sin)
    history = make_history(heads, 40, BLOCK_SIZE, seed=0)
    # Numbers that have eight bits already; the interpreter does not round as a GPU does.
    history = History(history.qkv.to(torch.float8_e4m3fn).float(), history.blocks)
    eight = whole(kernels, heads, history, dtype=torch.float8_e4m3fn)
    assert torch.equal(eight, whole(kernels, heads, history))


def test_what_eight_bits_cannot_hold_becomes_the_largest_that_they_can(device):
    kernels, heads = prepare(device, torch.float32, NARROW)
    history = make_history(heads, 1, BLOCK_SIZE, seed=0)
    history.qkv[0, -2:] = torch.tensor([1e4, -1e4])
    cache = new_cache(kernels, heads, dtype=torch.float8_e4m3fn)
    run(kernels, heads, cache, [Step(history, 0, 1)])
    assert cache.values[history.blocks[0], 0, -1, -2:].tolist() == [448.0, -448.0]
