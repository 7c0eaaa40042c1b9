"""The layers of a decoder as calls of single kernels.

Owns the order of the kernels in a layer, for those that have no faster way, and as what a faster
way is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.kernels.interface import (
    Attention,
    AttentionRows,
    DecoderLayer,
    Experts,
    GatedMlp,
    Heads,
    Kernels,
    KVCache,
    Packed,
    Ranks,
)

__all__ = ["PlainLayers"]


@dataclass(frozen=True, slots=True)
class PlainLayers:
    """Implements ``kernels.interface.Layers`` with any kernels."""

    kernels: Kernels
    layers: Sequence[DecoderLayer]
    heads: Sequence[Heads]
    eps: float
    ranks: Ranks

    def run(self, hidden: Tensor, rows: AttentionRows, caches: Sequence[KVCache]) -> None:
        k, count, first = self.kernels, len(hidden), self.layers[0]
        normed = torch.empty_like(hidden)
        qkv = hidden.new_empty(count, first.qkv.outputs)
        attended = hidden.new_empty(count, first.attention_out.inputs)
        # One for all layers that are alike.
        prepared: dict[int, Attention] = {}
        for layer, heads, cache in zip(self.layers, self.heads, caches, strict=True):
            if id(heads) not in prepared:
                prepared[id(heads)] = k.attention(heads, rows)
            attention = prepared[id(heads)]
            k.rms_norm(hidden, layer.attention_norm, self.eps, out=normed)
            k.linear(normed, layer.qkv, out=qkv)
            if layer.query_norm is not None and layer.key_norm is not None:
                k.norm_heads(qkv, heads, layer.query_norm, layer.key_norm, self.eps)
            attention.store(qkv, cache)
            attention.attend(qkv, cache, out=attended)
            self._add_linear(attended, layer.attention_out, layer.attention_post_norm, hidden)

            k.rms_norm(hidden, layer.mlp_norm, self.eps, out=normed)
            self._add_mlp(normed, layer.mlp, layer.mlp_post_norm, hidden)

    def _add_mlp(
        self, x: Tensor, mlp: GatedMlp | Experts, post_norm: Tensor | None, hidden: Tensor
    ) -> None:
        if isinstance(mlp, Experts):
            mixed = torch.empty_like(hidden)
            self.kernels.experts(x, mlp, out=mixed)
            self._add(mixed, post_norm, hidden)
            return
        gate_up = x.new_empty(len(x), mlp.gate_up.outputs)
        inner = x.new_empty(len(x), mlp.down.inputs)
        self.kernels.linear(x, mlp.gate_up, out=gate_up)
        self.kernels.gated(gate_up, mlp.activation, out=inner)
        self._add_linear(inner, mlp.down, post_norm, hidden)

    def _add_linear(
        self, x: Tensor, layer: Packed, post_norm: Tensor | None, hidden: Tensor
    ) -> None:
        if self.ranks.size == 1 and post_norm is None:
            self.kernels.add_linear(x, layer, out=hidden)
            return
        share = torch.empty_like(hidden)
        self.kernels.linear(x, layer, out=share)
        self._add(share, post_norm, hidden)

    def _add(self, share: Tensor, post_norm: Tensor | None, hidden: Tensor) -> None:
        """To the hidden states, what all ranks have together; ``share`` is spoiled."""
        if self.ranks.size > 1:
            self.ranks.sum(share)
        if post_norm is not None:
            normed = torch.empty_like(share)
            self.kernels.rms_norm(share, post_norm, self.eps, out=normed)
            share = normed
        hidden += share
