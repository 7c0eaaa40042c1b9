"""The attention of one layer alone, to be timed.

Owns a cache of one layer and a step on it; what a step is otherwise is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.interface import AttentionRows, Heads, Kernels

__all__ = ["rehearse_attention"]

Spans = Sequence[tuple[int, int]]


def rehearse_attention(
    kernels: Kernels, spec: ModelSpec, block_size: int, spans: Spans
) -> Callable[[], None]:
    """Attention of sequences of the same shape, as a layer that sees everything has it.

    Each call computes it once more; K and V lie in blocks of any order.

    Args:
        kernels: that compute.
        spec: whose heads they are.
        block_size: positions of a block.
        spans: of each sequence, the tokens in the cache, and how many of them, the last, ask.
    """
    device = kernels.device
    half = spec.rope.dim // 2
    longest = max(context for context, _ in spans)
    heads = Heads(
        num_heads=spec.num_heads,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        cos=torch.ones(longest, half, device=device),
        sin=torch.zeros(longest, half, device=device),
        scale=spec.head_dim**-0.5,
    )
    rows = _rows(spans, block_size, device)
    cache = kernels.new_cache(heads, rows.block_tables.numel(), block_size, kernels.dtype)
    for part in (cache.keys, cache.values):
        part.normal_()
    qkv = torch.randn(len(rows.positions), heads.width, device=device).to(kernels.dtype)
    out = torch.empty(len(qkv), spec.num_heads * spec.head_dim, device=device, dtype=kernels.dtype)
    attention = kernels.attention(heads, rows)
    attention.store(qkv, cache)

    @torch.inference_mode()
    def compute() -> None:
        attention.attend(qkv, cache, out=out)

    return compute


def _rows(spans: Spans, block_size: int, device: torch.device) -> AttentionRows:
    longest = max(context for context, _ in spans)
    width = -(-longest // block_size)
    order = torch.randperm(len(spans) * width, generator=torch.Generator().manual_seed(0))
    tables = order.view(len(spans), width)
    positions = [torch.arange(context - count, context) for context, count in spans]
    slots = [
        table[places // block_size] * block_size + places % block_size
        for table, places in zip(tables, positions, strict=True)
    ]
    return AttentionRows(
        positions=torch.cat(positions).to(device),
        slots=torch.cat(slots).to(device),
        block_tables=tables.contiguous().to(device),
        context_lens=torch.tensor([context for context, _ in spans], device=device),
        query_lens=torch.tensor([count for _, count in spans], device=device),
        block_size=block_size,
        most_rows=max(count for _, count in spans),
        most_context=longest,
    )
