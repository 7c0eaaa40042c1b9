"""The Llama architecture: which weights there are, and how they make hidden states and logits.

Owns grouped-query attention, rotary scaling, tied embeddings and optional biases, as calls of
kernels. Knows token ids, positions and slots; nothing of sequences, blocks or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chairlift.cluster.model_spec import ModelSpec, RopeScaling
from chairlift.kernels.interface import (
    AttentionRows,
    DecoderLayer,
    Heads,
    Kernels,
    KVCache,
    Packed,
)
from chairlift.kernels.quantised import Matrix
from chairlift.kernels.rope import rope_angles, rope_frequencies

__all__ = ["Llama"]


class Llama:
    """A decoder with its weights."""

    def __init__(
        self, spec: ModelSpec, weights: dict[str, Matrix], kernels: Kernels, *, max_positions: int
    ) -> None:
        """Take the weights out of ``weights`` one by one, so that no second copy stays.

        Args:
            spec: the model.
            weights: by the names and with the shapes of ``cluster.model_files.weight_shapes``;
                empty afterwards.
            kernels: that compute.
            max_positions: positions that the angles are computed for.
        """
        self._kernels = kernels
        self._eps = spec.rms_norm_eps
        self._embedding = kernels.pack(weights.pop("model.embed_tokens.weight"))
        layers = [_take_layer(weights, index, kernels) for index in range(spec.num_layers)]
        self._norm = _take_vector(weights, "model.norm.weight")
        self._head = (
            self._embedding if spec.tied_embeddings else kernels.pack(weights.pop("lm_head.weight"))
        )
        self._heads = Heads(
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            *_rotations(spec, weights, max_positions),
        )
        self._layers = kernels.layers(layers, self._heads, self._eps)
        self._num_layers = spec.num_layers

    def new_caches(self, num_blocks: int, block_size: int) -> list[KVCache]:
        """K and V of each layer, empty."""
        return [
            self._kernels.new_cache(self._heads, num_blocks, block_size)
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
    spec: ModelSpec, weights: dict[str, Matrix], max_positions: int
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position: (max_positions, rotated elements / 2)."""
    frequencies, factor = rope_frequencies(
        spec.rope.theta,
        spec.rope.dim,
        scaling=spec.rope.scaling,
        parameters=spec.rope.parameters,
        max_positions=spec.context_length,
    )
    if spec.rope.scaling is RopeScaling.FACTORS:
        frequencies = frequencies / _take_vector(weights, "rope_freqs")
    return rope_angles(frequencies, torch.arange(max_positions), factor)


def _take_vector(weights: dict[str, Matrix], name: str) -> Tensor:
    vector = weights.pop(name)
    assert isinstance(vector, Tensor)  # only matrices are quantised
    return vector


def _take_layer(weights: dict[str, Matrix], index: int, kernels: Kernels) -> DecoderLayer:
    prefix = f"model.layers.{index}."
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."

    def take_linear(*names: str) -> Packed:
        """Projections of the same input, stacked; all of them have a bias, or none."""
        matrices = [weights.pop(f"{name}.weight") for name in names]
        biases = [
            _take_vector(weights, f"{name}.bias") for name in names if f"{name}.bias" in weights
        ]
        return kernels.pack(*matrices, bias=torch.cat(biases) if biases else None)

    return DecoderLayer(
        attention_norm=_take_vector(weights, f"{prefix}input_layernorm.weight"),
        qkv=take_linear(*(f"{attention}{part}_proj" for part in "qkv")),
        attention_out=take_linear(f"{attention}o_proj"),
        mlp_norm=_take_vector(weights, f"{prefix}post_attention_layernorm.weight"),
        gate_up=take_linear(f"{mlp}gate_proj", f"{mlp}up_proj"),
        down=take_linear(f"{mlp}down_proj"),
    )
