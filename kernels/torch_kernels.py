"""The kernels in plain torch: for machines without a compiler, and to compare with.

Owns nothing but the way from ``kernels.interface`` to torch's operations. They choose their
order of summation by the shapes of a batch, so a row's last bits depend on its company.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chairlift.kernels.interface import (
    FLOAT,
    Attention,
    AttentionRows,
    DecoderLayer,
    Heads,
    KVCache,
    Layers,
    Packed,
    Part,
)
from chairlift.kernels.plain_layers import PlainLayers
from chairlift.kernels.quantised import Matrix, stack
from chairlift.kernels.sampler import NumpySampler, Sampler
from chairlift.kernels.torch_attention import AttentionPlan, paged_attention, plan_attention
from chairlift.kernels.torch_cpu import apply_rope, kv_write, linear, rms_norm, silu_mul

__all__ = ["TorchKernels"]


class TorchKernels:
    """Implements ``kernels.interface.Kernels``."""

    exact = False
    encodings: frozenset[str] = frozenset()
    cache_types = frozenset((torch.float32,))
    sampler: Sampler = NumpySampler()

    def pack(self, *matrices: Matrix, bias: Tensor | None = None) -> Packed:
        (weight,) = stack(matrices)
        if not isinstance(weight, Tensor):
            raise TypeError(f"expected float32 weights, found {weight.kind}")
        outputs, inputs = weight.shape
        return Packed((Part(weight, FLOAT, outputs),), bias, inputs, outputs)

    def embed(self, tokens: Tensor, table: Packed, *, out: Tensor) -> None:
        torch.index_select(table.parts[0].weight, 0, tokens, out=out)

    def linear(self, x: Tensor, layer: Packed, *, out: Tensor) -> None:
        out.copy_(linear(x, layer.parts[0].weight, layer.bias))

    def add_linear(self, x: Tensor, layer: Packed, *, out: Tensor) -> None:
        out += linear(x, layer.parts[0].weight, layer.bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> None:
        out.copy_(rms_norm(x, weight, eps))

    def silu_mul(self, gate_up: Tensor, *, out: Tensor) -> None:
        out.copy_(silu_mul(gate_up))

    def new_cache(
        self, heads: Heads, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> KVCache:
        if dtype not in self.cache_types:
            raise TypeError(f"expected a cache of float32, found {dtype}")
        shape = (num_blocks, block_size, heads.num_kv_heads, heads.head_dim)
        # Zeros, not whatever the memory held: padding is read, and only then masked. Torch's
        # own would touch every page at once.
        keys, values = (torch.from_numpy(np.zeros(shape, np.float32)) for _ in range(2))
        return KVCache(keys, values)

    def layers(self, layers: Sequence[DecoderLayer], heads: Heads, eps: float) -> Layers:
        return PlainLayers(self, layers, heads, eps)

    def attention(self, heads: Heads, rows: AttentionRows) -> Attention:
        a_block = torch.empty(1, rows.block_size, heads.num_kv_heads, heads.head_dim)
        return _TorchAttention(
            heads=heads,
            cos=heads.cos[rows.positions],
            sin=heads.sin[rows.positions],
            slots=rows.slots,
            plan=plan_attention(rows.block_tables, rows.context_lens, rows.query_lens, a_block),
        )


@dataclass(frozen=True, slots=True)
class _TorchAttention:
    """``cos`` and ``sin`` are those of the step's rows."""

    heads: Heads
    cos: Tensor
    sin: Tensor
    slots: Tensor
    plan: AttentionPlan

    def store(self, qkv: Tensor, cache: KVCache) -> None:
        by_head = self._by_head(qkv)
        stored = self.heads.num_kv_heads
        rotated = by_head[:, :-stored]
        rotated.copy_(apply_rope(rotated, self.cos, self.sin))
        kv_write(cache.keys, rotated[:, -stored:], self.slots)
        kv_write(cache.values, by_head[:, -stored:], self.slots)

    def attend(self, qkv: Tensor, cache: KVCache, *, out: Tensor) -> None:
        query = self._by_head(qkv)[:, : self.heads.num_heads]
        out.copy_(paged_attention(query, cache.keys, cache.values, self.plan).flatten(1))

    def _by_head(self, qkv: Tensor) -> Tensor:
        return qkv.view(len(qkv), -1, self.heads.head_dim)
