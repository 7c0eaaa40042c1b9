from __future__ import annotations

import pytest
import torch

from chairlift.kernels import reference, torch_attention
from chairlift.kernels.torch_attention import paged_attention, plan_attention

HEAD_DIM, BLOCKS = 8, 64

BATCHES = {
    "one decoding": [(9, 1)],
    "first token": [(1, 1)],
    "decoding": [(3, 1), (17, 1), (16, 1), (5, 1), (40, 1)],
    "whole prompt": [(13, 13)],
    "last chunk": [(29, 5)],
    "prompts": [(6, 6), (1, 1), (20, 4), (9, 2)],
    "mixed": [(12, 1), (7, 7), (31, 1), (22, 10), (2, 1), (40, 3)],
}


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_equals_the_reference(batch, heads, kv_heads, block_size):
    check(batch, heads, kv_heads, block_size)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_cuts_into_small_groups_and_tiles_change_nothing(batch, monkeypatch):
    monkeypatch.setattr(torch_attention, "_GROUP_TOKENS", 48)
    monkeypatch.setattr(torch_attention, "_GROUP_PADDING", 8)
    monkeypatch.setattr(torch_attention, "_QUERY_TILE", 4)
    check(batch, heads=6, kv_heads=2, block_size=4)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("window", [1, 6, 17, 100])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_a_window_hides_what_lies_before_it(batch, window, block_size, monkeypatch):
    check(batch, 6, 2, block_size, window=window)
    monkeypatch.setattr(torch_attention, "_QUERY_TILE", 4)
    check(batch, 6, 2, block_size, window=window)


@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
def test_scores_are_scaled_and_capped(batch, window):
    check(batch, 6, 2, 4, window=window, scale=0.5, soft_cap=3.0)


def test_blocks_before_the_window_are_not_gathered():
    plan = plan_attention(
        torch.arange(2 * 63).view(2, 63),
        torch.tensor([1000, 1000]),
        torch.tensor([1, 20]),
        torch.zeros(1, 16, 2, HEAD_DIM),
        window=32,
    )
    assert plan.groups[0].blocks.tolist() == [60, 61, 62]
    assert plan.chunks[0].blocks.tolist() == [122, 123, 124, 125]


def test_groups_hold_similar_lengths():
    contexts = torch.tensor([900, 10, 12, 1000, 11, 300])
    plan = plan_attention(
        torch.zeros(6, 63, dtype=torch.int64),
        contexts,
        torch.ones(6, dtype=torch.int64),
        torch.zeros(1, 16, 2, HEAD_DIM),
    )
    groups = [sorted(contexts[group.rows].tolist()) for group in plan.groups]
    assert groups == [[10, 11, 12], [300], [900, 1000]]


def test_a_long_prompt_needs_no_score_matrix_of_its_own():
    context = 3000
    plan = plan_attention(
        torch.arange(188)[None],
        torch.tensor([context]),
        torch.tensor([context]),
        torch.zeros(188, 16, 1, HEAD_DIM),
    )
    assert plan.causal.numel() < context * context / 4


def check(batch, heads, kv_heads, block_size, window=None, **scoring):
    torch.manual_seed(0)
    caches = 2 * torch.randn(2, BLOCKS * 16 // block_size, block_size, kv_heads, HEAD_DIM)
    contexts, counts = (torch.tensor(column) for column in zip(*batch, strict=True))
    blocks = iter(torch.randperm(caches.shape[1]).tolist())
    tables = torch.zeros(len(batch), -(-int(contexts.max()) // block_size), dtype=torch.int64)
    for table, context in zip(tables, contexts.tolist(), strict=True):
        for index in range(-(-context // block_size)):
            table[index] = next(blocks)
    # A slice of wider rows, as queries come out of the fused projections.
    query = (2 * torch.randn(int(counts.sum()), heads + 2, HEAD_DIM))[:, :heads]

    plan = plan_attention(tables, contexts, counts, caches[0], window=window)
    actual = paged_attention(query, caches[0], caches[1], plan, **scoring)
    expected = reference.paged_attention(
        query.double(),
        tuple(caches.double()),
        tables,
        contexts,
        counts,
        scale=scoring.get("scale"),
        window=window,
        cap=scoring.get("soft_cap"),
    )
    assert actual.is_contiguous()
    torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=1e-5)
