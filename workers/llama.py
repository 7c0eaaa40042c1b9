"""The Llama architecture: which weights there are, and how they make hidden states and logits.

Owns grouped-query attention, rotary scaling, tied embeddings and optional biases, as calls of
kernels. Knows token ids, positions and slots; nothing of sequences, blocks or sampling.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.cluster.model_spec import ModelSpec, RopeScaling
from chairlift.kernels.rope import rope_angles, rope_frequencies
from chairlift.kernels.torch_attention import AttentionPlan, paged_attention
from chairlift.kernels.torch_cpu import apply_rope, kv_write, linear, rms_norm, silu_mul

__all__ = ["Llama", "LlamaInput"]


@dataclass(frozen=True, slots=True)
class LlamaInput:
    """The rows of one step.

    Attributes:
        tokens, positions, slots: (rows,) int64.
        attention: which rows attend to what.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    attention: AttentionPlan


@dataclass(frozen=True, slots=True)
class _Linear:
    """``weight`` (out, in) and ``bias`` (out,) of one or more projections, stacked."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: Tensor
    qkv: _Linear
    attention_out: _Linear
    mlp_norm: Tensor
    gate_up: _Linear
    down: _Linear


class Llama:
    """A decoder with its weights."""

    def __init__(self, spec: ModelSpec, weights: dict[str, Tensor]) -> None:
        """Take the weights out of ``weights`` one by one, so that no second copy stays.

        Args:
            spec: the model.
            weights: by the names and with the shapes of ``cluster.model_files.weight_shapes``;
                empty afterwards.
        """
        self._spec = spec
        self._embedding = weights.pop("model.embed_tokens.weight")
        self._layers = [_take_layer(weights, index) for index in range(spec.num_layers)]
        self._norm = weights.pop("model.norm.weight")
        self._head = self._embedding if spec.tied_embeddings else weights.pop("lm_head.weight")
        self._frequencies, self._rope_factor = rope_frequencies(
            spec.rope.theta,
            spec.rope.dim,
            scaling=spec.rope.scaling,
            parameters=spec.rope.parameters,
            max_positions=spec.context_length,
        )
        if spec.rope.scaling is RopeScaling.FACTORS:
            self._frequencies = self._frequencies / weights.pop("rope_freqs")

    def forward(self, batch: LlamaInput, caches: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Compute all rows, and write their K and V.

        Args:
            batch: the rows.
            caches: K and V of each layer, (blocks, block_size, kv_heads, head_dim).

        Returns:
            (rows, hidden) hidden states, for ``logits``.
        """
        spec, rows = self._spec, len(batch.tokens)
        cos, sin = rope_angles(self._frequencies, batch.positions, self._rope_factor)
        hidden = self._embedding[batch.tokens]
        for layer, (key_cache, value_cache) in zip(self._layers, caches, strict=True):
            qkv = layer.qkv(rms_norm(hidden, layer.attention_norm, spec.rms_norm_eps))
            heads = qkv.view(rows, -1, spec.head_dim)
            rotated = apply_rope(heads[:, : -spec.num_kv_heads], cos, sin)
            kv_write(key_cache, rotated[:, spec.num_heads :], batch.slots)
            kv_write(value_cache, heads[:, -spec.num_kv_heads :], batch.slots)
            query = rotated[:, : spec.num_heads]
            attended = paged_attention(query, key_cache, value_cache, batch.attention)
            hidden += layer.attention_out(attended.flatten(1))
            gate_up = layer.gate_up(rms_norm(hidden, layer.mlp_norm, spec.rms_norm_eps))
            hidden += layer.down(silu_mul(gate_up))
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """(rows, hidden) of ``forward`` to (rows, vocabulary)."""
        return linear(rms_norm(hidden, self._norm, self._spec.rms_norm_eps), self._head)


def _take_layer(weights: dict[str, Tensor], index: int) -> _Layer:
    prefix = f"model.layers.{index}."
    attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
    return _Layer(
        attention_norm=weights.pop(f"{prefix}input_layernorm.weight"),
        qkv=_take_linear(weights, *(f"{attention}{part}_proj" for part in "qkv")),
        attention_out=_take_linear(weights, f"{attention}o_proj"),
        mlp_norm=weights.pop(f"{prefix}post_attention_layernorm.weight"),
        gate_up=_take_linear(weights, f"{mlp}gate_proj", f"{mlp}up_proj"),
        down=_take_linear(weights, f"{mlp}down_proj"),
    )


def _take_linear(weights: dict[str, Tensor], *names: str) -> _Linear:
    """Projections of the same input, stacked into one; all of them have a bias, or none."""
    matrices = [weights.pop(f"{name}.weight") for name in names]
    biases = [weights.pop(f"{name}.bias") for name in names if f"{name}.bias" in weights]
    return _Linear(
        weight=matrices[0] if len(matrices) == 1 else torch.cat(matrices),
        bias=torch.cat(biases) if biases else None,
    )
