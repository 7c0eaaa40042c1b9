"""A Llama's weights as its kernels read them.

Owns which matrices are stacked and packed together, and in which order that is done. Where they
come from is known to ``workers.model_loading``, what is computed with them to ``workers.llama``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.cluster.model_spec import ModelSpec, RopeScaling
from chairlift.kernels.interface import FLOAT, DecoderLayer, Kernels, Packed
from chairlift.kernels.quantised import Matrix

__all__ = ["LlamaWeights", "pack_weights"]


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All of them.

    Attributes:
        embedding: a row for each token.
        layers: in order.
        norm: of what the last layer gives.
        head: from there to logits; the embedding itself where the two are tied.
        rope_factors: explicit divisors of the rotary frequencies, if the model has them.
    """

    embedding: Packed
    layers: tuple[DecoderLayer, ...]
    norm: Tensor
    head: Packed
    rope_factors: Tensor | None

    @property
    def quantised(self) -> bool:
        """Whether there is a matrix whose inputs are rounded."""
        packed = [self.embedding, self.head]
        for layer in self.layers:
            packed += layer.qkv, layer.attention_out, layer.gate_up, layer.down
        return any(part.kind != FLOAT for each in packed for part in each.parts)


def pack_weights(spec: ModelSpec, weights: dict[str, Matrix], kernels: Kernels) -> LlamaWeights:
    """Take the weights out of ``weights`` one by one, so that no second copy stays.

    Args:
        spec: the model.
        weights: by the names and with the shapes of ``cluster.model_files.weight_shapes``;
            empty afterwards.
        kernels: that pack them.
    """
    embedding = kernels.pack(weights.pop("model.embed_tokens.weight"))
    layers = tuple(_take_layer(weights, index, kernels) for index in range(spec.num_layers))
    norm = _take_vector(weights, "model.norm.weight")
    head = embedding if spec.tied_embeddings else kernels.pack(weights.pop("lm_head.weight"))
    explicit = spec.rope.scaling is RopeScaling.FACTORS
    factors = _take_vector(weights, "rope_freqs") if explicit else None
    return LlamaWeights(embedding, layers, norm, head, factors)


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
