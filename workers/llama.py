"""The Llama architecture: how weights make hidden states and logits.

Owns grouped-query attention and rotary scaling, as calls of kernels. Knows token ids, positions and
slots; nothing of sequences, blocks or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.interface import (
    AttentionRows,
    Heads,
    Kernels,
    KVCache,
)
from chairlift.kernels.rope import rope_angles, rope_frequencies
from chairlift.workers.llama_weights import LlamaWeights

__all__ = ["Llama"]


class Llama:
    """A decoder with its weights."""

    def __init__(
        self, spec: ModelSpec, weights: LlamaWeights, kernels: Kernels, *, max_positions: int
    ) -> None:
        """Get ready to compute.

        Args:
            spec: the model.
            weights: as these kernels have packed them.
            kernels: that compute.
            max_positions: positions that the angles are computed for.
        """
        self._kernels = kernels
        self._eps = spec.rms_norm_eps
        self._embedding, self._norm, self._head = weights.embedding, weights.norm, weights.head
        self._heads = Heads(
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            *_rotations(spec, weights.rope_factors, max_positions),
        )
        self._layers = kernels.layers(weights.layers, self._heads, self._eps)
        self._num_layers = spec.num_layers

    def new_caches(
        self, num_blocks: int, block_size: int, dtype: torch.dtype = torch.float32
    ) -> list[KVCache]:
        """K and V of each layer, empty."""
        return [
            self._kernels.new_cache(self._heads, num_blocks, block_size, dtype)
            for _ in range(self._num_layers)
        ]

    def forward(self, tokens: Tensor, rows: AttentionRows, caches: Sequence[KVCache]) -> Tensor:
        """Compute all rows, and write their K and V.

        Args:
            tokens: (rows,) int64.
            rows: where they stand.
            caches: of each layer.

        Returns:
            (rows, hidden) hidden states, for ``logits``.
        """
        hidden = torch.empty(len(tokens), self._embedding.inputs)
        self._kernels.embed(tokens, self._embedding, out=hidden)
        self._layers.run(hidden, rows, caches)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, hidden) of ``forward`` to (rows, vocabulary)."""
        normed = torch.empty_like(hidden)
        logits = torch.empty(len(hidden), self._head.outputs)
        self._kernels.rms_norm(hidden, self._norm, self._eps, out=normed)
        self._kernels.linear(normed, self._head, out=logits)
        return logits


def _rotations(
    spec: ModelSpec, factors: Tensor | None, max_positions: int
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position: (max_positions, rotated elements / 2)."""
    frequencies, factor = rope_frequencies(
        spec.rope.theta,
        spec.rope.dim,
        scaling=spec.rope.scaling,
        parameters=spec.rope.parameters,
        max_positions=spec.context_length,
    )
    if factors is not None:
        frequencies = frequencies / factors
    return rope_angles(frequencies, torch.arange(max_positions), factor)
