"""The kernels for GPUs.

Owns the way from ``kernels.interface`` to the single kernels of this folder, and what they keep
between steps: weights on the device, counters, addresses of experts. Nothing here waits for the
device, nor does the size of a launch depend on what lies there, so a CUDA graph can hold a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from chairlift.kernels.flash import Flash, FlashRows, Scoring, flash_rows
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
from chairlift.kernels.plain_layers import PlainLayers
from chairlift.kernels.quantised import Matrix, stack
from chairlift.kernels.triton import activations, norms
from chairlift.kernels.triton.attention import AttentionTiles, attend, cut_rows
from chairlift.kernels.triton.cache import rotate_and_store
from chairlift.kernels.triton.experts import ExpertWeights, mix_experts
from chairlift.kernels.triton.linear import Linear
from chairlift.kernels.triton.sampling import TritonSampler

__all__ = ["TritonKernels"]


class TritonKernels:
    """Implements ``kernels.interface.Kernels``, but that the sampler's logits are on the device."""

    encodings: frozenset[str] = frozenset()

    def __init__(
        self, device: torch.device, dtype: torch.dtype, exact: bool, flash: Flash | None = None
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.exact = exact and (flash is None or flash.exact)
        types = (dtype, torch.float8_e4m3fn) if _has_eight_bits(device) else (dtype,)
        self.cache_types = frozenset(types)
        self.sampler = TritonSampler()
        self._is_exact = exact
        self._flash = flash
        self._product = Linear(device)
        self._experts: dict[int, ExpertWeights] = {}

    def pack(self, *matrices: Matrix, bias: Tensor | None = None) -> Packed:
        (weight,) = stack(matrices)
        if not isinstance(weight, Tensor):
            raise TypeError(f"expected weights as numbers, found {weight.kind}")
        outputs, inputs = weight.shape
        if bias is not None:
            bias = bias.to(self.device, self.dtype).contiguous()
        weight = weight.to(self.device, self.dtype).contiguous()
        return Packed((Part(weight, FLOAT, outputs),), bias, inputs, outputs)

    def embed(self, tokens: Tensor, table: Packed, *, out: Tensor) -> None:
        torch.index_select(table.parts[0].weight, 0, tokens, out=out)

    def linear(self, x: Tensor, layer: Packed, *, out: Tensor) -> None:
        weight = layer.parts[0].weight
        if self._is_exact:
            self._product(x, weight, layer.bias, out=out)
        elif out.dtype != x.dtype:
            out.copy_(F.linear(x, weight, layer.bias))
        elif layer.bias is None:
            torch.mm(x, weight.t(), out=out)
        else:
            torch.addmm(layer.bias, x, weight.t(), out=out)

    def add_linear(self, x: Tensor, layer: Packed, *, out: Tensor) -> None:
        weight = layer.parts[0].weight
        if self._is_exact:
            self._product(x, weight, layer.bias, out=out, adds=True)
            return
        out.addmm_(x, weight.t())
        if layer.bias is not None:
            out += layer.bias

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> None:
        norms.rms_norm(x, weight, eps, out=out)

    def norm_heads(self, qkv: Tensor, heads: Heads, query: Tensor, key: Tensor, eps: float) -> None:
        norms.norm_heads(qkv, heads, query, key, eps)

    def gated(self, gate_up: Tensor, activation: Activation, *, out: Tensor) -> None:
        activations.gated(gate_up, activation, out=out)

    def soft_cap(self, logits: Tensor, cap: float) -> None:
        activations.soft_cap(logits, cap)

    def experts(self, x: Tensor, layer: Experts, *, out: Tensor) -> None:
        scores = torch.empty(len(x), layer.router.outputs, device=x.device, dtype=torch.float32)
        self.linear(x, layer.router, out=scores)
        mix_experts(scores, x, self._prepare(layer), out=out)

    def new_cache(
        self, heads: Heads, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> KVCache:
        if dtype not in self.cache_types:
            known = ", ".join(sorted(map(str, self.cache_types)))
            raise TypeError(f"expected a cache of one of {known}; found {dtype}")
        shape = (num_blocks, block_size, heads.num_kv_heads, heads.head_dim)
        keys, values = (torch.zeros(shape, dtype=dtype, device=self.device) for _ in range(2))
        return KVCache(keys, values)

    def attention(self, heads: Heads, rows: AttentionRows) -> Attention:
        if self._flash is None:
            return _TritonAttention(heads, cut_rows(heads, rows, self.dtype))
        longest = rows.most_rows, rows.most_context
        lengths = flash_rows(rows.block_tables, rows.context_lens, rows.query_lens, longest)
        return _FlashAttention(heads, rows, self._flash, lengths)

    def layers(
        self, layers: Sequence[DecoderLayer], heads: Sequence[Heads], eps: float, ranks: Ranks
    ) -> Layers:
        for layer in layers:
            if isinstance(layer.mlp, Experts):
                self._prepare(layer.mlp)
        return PlainLayers(self, layers, heads, eps, ranks)

    def _prepare(self, layer: Experts) -> ExpertWeights:
        if id(layer) not in self._experts:
            self._experts[id(layer)] = ExpertWeights.of(layer, self.device)
        return self._experts[id(layer)]


def _has_eight_bits(device: torch.device) -> bool:
    """Whether its instructions know float8_e4m3; the interpreter does."""
    return device.type == "cpu" or torch.cuda.get_device_capability(device) >= (8, 9)


@dataclass(frozen=True, slots=True)
class _TritonAttention:
    heads: Heads
    tiles: AttentionTiles

    def store(self, qkv: Tensor, cache: KVCache) -> None:
        rotate_and_store(qkv, cache, self.heads, self.tiles.rows)

    def attend(self, qkv: Tensor, cache: KVCache, *, out: Tensor) -> None:
        attend(qkv, cache, self.heads, self.tiles, out=out)


@dataclass(frozen=True, slots=True)
class _FlashAttention:
    heads: Heads
    rows: AttentionRows
    flash: Flash
    lengths: FlashRows

    def store(self, qkv: Tensor, cache: KVCache) -> None:
        rotate_and_store(qkv, cache, self.heads, self.rows)

    def attend(self, qkv: Tensor, cache: KVCache, *, out: Tensor) -> None:
        heads = self.heads
        by_head = qkv.view(len(qkv), -1, heads.head_dim)
        self.flash.attend(
            by_head[:, : heads.num_heads],
            (cache.keys, cache.values),
            self.lengths,
            Scoring(heads.scale, heads.window, heads.soft_cap),
            out=out.view(len(qkv), heads.num_heads, heads.head_dim),
        )
