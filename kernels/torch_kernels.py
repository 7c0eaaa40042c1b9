"""The kernels in plain torch: wherever it runs, and to compare with.

Owns nothing but the way from ``kernels.interface`` to torch's operations. They choose their
order of summation by the shapes of a batch, so a row's last bits depend on its company.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chairlift.kernels.interface import (
    FLOAT,
    Activation,
    Attention,
    AttentionRows,
    DecoderLayer,
    Experts,
    Heads,
    KVCache,
    Layers,
    Packed,
    Part,
    Ranks,
)
from chairlift.kernels.plain_experts import mix_experts
from chairlift.kernels.plain_layers import PlainLayers
from chairlift.kernels.quantised import Matrix, stack
from chairlift.kernels.sampler import NumpySampler, Sampler
from chairlift.kernels.torch_attention import AttentionPlan, paged_attention, plan_attention
from chairlift.kernels.torch_cpu import apply_rope, gated, kv_write, linear, rms_norm

__all__ = ["TorchKernels"]

_CPU = torch.device("cpu")


class TorchKernels:
    """Implements ``kernels.interface.Kernels``."""

    exact = False
    encodings: frozenset[str] = frozenset()
    sampler: Sampler = NumpySampler()

    def __init__(self, device: torch.device = _CPU, dtype: torch.dtype = torch.float32) -> None:
        """Compute there, with numbers of this type."""
        self.device = device
        self.dtype = dtype
        self.cache_types = frozenset((dtype,))

    def pack(self, *matrices: Matrix, bias: Tensor | None = None) -> Packed:
        (weight,) = stack(matrices)
        if not isinstance(weight, Tensor):
            raise TypeError(f"expected weights that are not quantised, found {weight.kind}")
        outputs, inputs = weight.shape
        part = Part(weight.to(self.device, self.dtype), FLOAT, outputs)
        bias = None if bias is None else bias.to(self.device, self.dtype)
        return Packed((part,), bias, inputs, outputs)

    def embed(self, tokens: Tensor, table: Packed, *, out: Tensor) -> None:
        torch.index_select(table.parts[0].weight, 0, tokens, out=out)

    def linear(self, x: Tensor, layer: Packed, *, out: Tensor) -> None:
        out.copy_(linear(x, layer.parts[0].weight, layer.bias))

    def add_linear(self, x: Tensor, layer: Packed, *, out: Tensor) -> None:
        out += linear(x, layer.parts[0].weight, layer.bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> None:
        out.copy_(rms_norm(x, weight, eps))

    def norm_heads(self, qkv: Tensor, heads: Heads, query: Tensor, key: Tensor, eps: float) -> None:
        by_head = qkv.view(len(qkv), -1, heads.head_dim)
        rotated = heads.num_heads + heads.num_kv_heads
        for part, weight in (
            (by_head[:, : heads.num_heads], query),
            (by_head[:, heads.num_heads : rotated], key),
        ):
            part.copy_(rms_norm(part, weight, eps))

    def gated(self, gate_up: Tensor, activation: Activation, *, out: Tensor) -> None:
        out.copy_(gated(gate_up, activation))

    def soft_cap(self, logits: Tensor, cap: float) -> None:
        logits.div_(cap).tanh_().mul_(cap)

    def experts(self, x: Tensor, layer: Experts, *, out: Tensor) -> None:
        mix_experts(self, x, layer, out=out)

    def new_cache(
        self, heads: Heads, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> KVCache:
        if dtype not in self.cache_types:
            raise TypeError(f"expected a cache of {self.dtype}, found {dtype}")
        shape = (num_blocks, block_size, heads.num_kv_heads, heads.head_dim)
        # Zeros, not whatever the memory held: padding is read, and only then masked.
        if self.device.type == "cpu":
            # Torch's own would touch every page at once.
            words = math.prod(shape) * dtype.itemsize
            keys, values = (
                torch.from_numpy(np.zeros(words, np.uint8)).view(dtype).view(shape)
                for _ in range(2)
            )
        else:
            keys, values = torch.zeros(2, *shape, dtype=dtype, device=self.device)
        return KVCache(keys, values)

    def layers(
        self, layers: Sequence[DecoderLayer], heads: Sequence[Heads], eps: float, ranks: Ranks
    ) -> Layers:
        return PlainLayers(self, layers, heads, eps, ranks)

    def attention(self, heads: Heads, rows: AttentionRows) -> Attention:
        a_block = torch.empty(
            *(1, rows.block_size, heads.num_kv_heads, heads.head_dim),
            dtype=self.dtype,
            device=self.device,
        )
        return _TorchAttention(
            heads=heads,
            cos=heads.cos[rows.positions],
            sin=heads.sin[rows.positions],
            slots=rows.slots,
            plan=plan_attention(
                rows.block_tables,
                rows.context_lens,
                rows.query_lens,
                a_block,
                window=heads.window,
            ),
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
        attended = paged_attention(
            query,
            cache.keys,
            cache.values,
            self.plan,
            scale=self.heads.scale,
            soft_cap=self.heads.soft_cap,
        )
        out.copy_(attended.flatten(1))

    def _by_head(self, qkv: Tensor) -> Tensor:
        return qkv.view(len(qkv), -1, self.heads.head_dim)
