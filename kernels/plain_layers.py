"""The layers of a decoder as calls of single kernels.

Owns the order of the kernels in a layer, for those that have no faster way, and as what a faster
way is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.kernels.interface import AttentionRows, DecoderLayer, Heads, Kernels, KVCache

__all__ = ["PlainLayers"]


@dataclass(frozen=True, slots=True)
class PlainLayers:
    """Implements ``kernels.interface.Layers`` with any kernels."""

    kernels: Kernels
    layers: Sequence[DecoderLayer]
    heads: Heads
    eps: float

    def run(self, hidden: Tensor, rows: AttentionRows, caches: Sequence[KVCache]) -> None:
        k, count, first = self.kernels, len(hidden), self.layers[0]
        normed = torch.empty_like(hidden)
        qkv = torch.empty(count, first.qkv.outputs)
        attended = torch.empty(count, first.attention_out.inputs)
        gate_up = torch.empty(count, first.gate_up.outputs)
        inner = torch.empty(count, first.down.inputs)

        attention = k.attention(self.heads, rows)
        for layer, cache in zip(self.layers, caches, strict=True):
            k.rms_norm(hidden, layer.attention_norm, self.eps, out=normed)
            k.linear(normed, layer.qkv, out=qkv)
            attention.store(qkv, cache)
            attention.attend(qkv, cache, out=attended)
            k.add_linear(attended, layer.attention_out, out=hidden)

            k.rms_norm(hidden, layer.mlp_norm, self.eps, out=normed)
            k.linear(normed, layer.gate_up, out=gate_up)
            k.silu_mul(gate_up, out=inner)
            k.add_linear(inner, layer.down, out=hidden)
