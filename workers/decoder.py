"""A decoder: how weights make hidden states and logits, whatever the family.

Owns what stands around the layers: the embedding, the rotations of each kind of layer, the head;
and, where several ranks have a share of the model each, what they tell each other there. All that
differs between families is in the ``ModelSpec``. Knows token ids, positions and slots; nothing of
sequences, blocks or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chairlift.cluster.model_spec import ModelSpec, RopeSpec
from chairlift.kernels.interface import AttentionRows, Heads, Kernels, KVCache
from chairlift.kernels.rope import rope_angles, rope_frequencies
from chairlift.workers.decoder_weights import DecoderWeights
from chairlift.workers.shards import share_of
from chairlift.workers.tensor_parallel import Group

__all__ = ["Decoder"]


class Decoder:
    """A decoder with its weights, or a rank's share of one."""

    def __init__(
        self,
        spec: ModelSpec,
        weights: DecoderWeights,
        kernels: Kernels,
        group: Group,
        *,
        max_positions: int,
    ) -> None:
        """Get ready to compute.

        Args:
            spec: the whole model.
            weights: as these kernels have packed them, of this rank.
            kernels: that compute.
            group: the ranks that compute it together.
            max_positions: positions that the angles are computed for.
        """
        self._spec = spec
        self._kernels = kernels
        self._group = group
        # Rounded as models are trained with it: to the type of what it is multiplied with.
        self._embedding_scale = torch.tensor(spec.embedding_scale, dtype=kernels.dtype).item()
        self._embedding, self._norm, self._head = weights.embedding, weights.norm, weights.head
        self._share = share_of(spec, group.rank, group.size)
        self._heads = self._heads_of_layers(weights.rope_factors, max_positions)
        self._layers = kernels.layers(weights.layers, self._heads, spec.rms_norm_eps, group)

    def new_caches(self, num_blocks: int, block_size: int, dtype: torch.dtype) -> list[KVCache]:
        """K and V of each layer, empty."""
        return [
            self._kernels.new_cache(heads, num_blocks, block_size, dtype) for heads in self._heads
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
        hidden = self._new(len(tokens), self._spec.hidden_size)
        self._embed(tokens, hidden)
        self._layers.run(hidden, rows, caches)
        return hidden

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """(rows, hidden) of ``forward`` to (rows, vocabulary) in float32; ``out`` if given."""
        spec, kernels = self._spec, self._kernels
        logits = self._new(len(hidden), spec.vocab_size, torch.float32) if out is None else out
        alone = self._group.size == 1
        own = logits if alone else self._new(len(hidden), self._head.outputs, torch.float32)
        normed = torch.empty_like(hidden)
        kernels.rms_norm(hidden, self._norm, spec.rms_norm_eps, out=normed)
        kernels.linear(normed, self._head, out=own)
        if not alone:
            self._group.gather(own, logits)
        if spec.final_soft_cap is not None:
            kernels.soft_cap(logits, spec.final_soft_cap)
        return logits

    def _embed(self, tokens: Tensor, hidden: Tensor) -> None:
        if self._group.size == 1:
            self._kernels.embed(tokens, self._embedding, out=hidden)
        else:
            # One rank has the row, the others add nothing.
            own = self._share.vocabulary
            tokens = tokens - own.start
            others = (tokens < 0) | (tokens >= len(own))
            self._kernels.embed(tokens.masked_fill(others, 0), self._embedding, out=hidden)
            hidden.masked_fill_(others[:, None], 0.0)
            self._group.sum(hidden)
        if self._embedding_scale != 1.0:
            hidden *= self._embedding_scale

    def _new(self, rows: int, width: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(
            rows, width, dtype=dtype or self._kernels.dtype, device=self._kernels.device
        )

    def _heads_of_layers(self, factors: Tensor | None, max_positions: int) -> list[Heads]:
        """Of each layer; one object for all that are alike."""
        spec = self._spec
        everything = self._heads_with(spec.rope, factors, max_positions, None)
        if not spec.local_layers:
            return [everything] * spec.num_layers
        local = self._heads_with(spec.local_rope or spec.rope, factors, max_positions, spec.window)
        return [
            local if index in spec.local_layers else everything for index in range(spec.num_layers)
        ]

    def _heads_with(
        self, rope: RopeSpec, factors: Tensor | None, max_positions: int, window: int | None
    ) -> Heads:
        spec = self._spec
        cos, sin = _rotations(spec, rope, factors, max_positions)
        scale = spec.head_dim**-0.5 if spec.query_scale is None else spec.query_scale
        return Heads(
            num_heads=len(self._share.heads),
            num_kv_heads=len(self._share.kv_heads),
            head_dim=spec.head_dim,
            cos=cos.to(self._kernels.device),
            sin=sin.to(self._kernels.device),
            scale=scale,
            window=window,
            soft_cap=spec.attention_soft_cap,
        )


def _rotations(
    spec: ModelSpec, rope: RopeSpec, factors: Tensor | None, max_positions: int
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position: (max_positions, rotated elements / 2)."""
    frequencies, factor = rope_frequencies(
        rope.theta,
        rope.dim,
        scaling=rope.scaling,
        parameters=rope.parameters,
        max_positions=spec.context_length,
        divisors=rope.divisors,
    )
    if factors is not None:
        frequencies = frequencies / factors
    return rope_angles(frequencies, torch.arange(max_positions), factor)
