"""A decoder's weights as its kernels read them.

Owns which matrices are stacked and packed together, and in which order that is done. Where they
come from is known to ``workers.model_loading``, what is computed with them to ``workers.decoder``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from chairlift.cluster.model_spec import ModelSpec, RopeScaling
from chairlift.kernels.interface import FLOAT, DecoderLayer, Experts, GatedMlp, Kernels, Packed
from chairlift.kernels.quantised import Matrix

__all__ = ["DecoderWeights", "pack_weights"]


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All of them, or one rank's share.

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
        return any(part.kind != FLOAT for packed in self._matrices() for part in packed.parts)

    def _matrices(self) -> Iterator[Packed]:
        yield from (self.embedding, self.head)
        for layer in self.layers:
            yield from (layer.qkv, layer.attention_out)
            if isinstance(layer.mlp, Experts):
                yield layer.mlp.router
            mlps = layer.mlp.experts if isinstance(layer.mlp, Experts) else (layer.mlp,)
            for mlp in mlps:
                yield from (mlp.gate_up, mlp.down)


def pack_weights(
    spec: ModelSpec, weights: dict[str, Matrix], kernels: Kernels, *, rank: int = 0
) -> DecoderWeights:
    """Take the weights out of ``weights`` one by one, so that no second copy stays.

    Args:
        spec: the model.
        weights: by the names of ``cluster.model_files.weight_shapes``, whole or the rank's share;
            empty afterwards.
        kernels: that pack them.
        rank: whose they are. What every rank adds to the hidden states is summed, so biases of
            that are left to the first.
    """
    taken = _Taking(spec, weights, kernels, rank)
    embedding = taken.linear("model.embed_tokens")
    layers = tuple(taken.layer(index) for index in range(spec.num_layers))
    norm = taken.norm("model.norm")
    head = embedding if spec.tied_embeddings else taken.linear("lm_head")
    explicit = spec.rope.scaling is RopeScaling.FACTORS
    factors = taken.vector("rope_freqs") if explicit else None
    return DecoderWeights(embedding, layers, norm, head, factors)


@dataclass(frozen=True, slots=True)
class _Taking:
    """Weights that become fewer."""

    spec: ModelSpec
    weights: dict[str, Matrix]
    kernels: Kernels
    rank: int

    def vector(self, name: str) -> Tensor:
        vector = self.weights.pop(name)
        assert isinstance(vector, Tensor)  # only matrices are quantised
        return vector.float()

    def norm(self, name: str) -> Tensor:
        weight = self.vector(f"{name}.weight")
        if self.spec.norm_offset:
            weight = weight + self.spec.norm_offset
        return weight.to(self.kernels.device)

    def linear(self, *names: str) -> Packed:
        """Projections of the same input, stacked; all of them have a bias, or none."""
        matrices = [self.weights.pop(f"{name}.weight") for name in names]
        biases = [self.vector(f"{name}.bias") for name in names if f"{name}.bias" in self.weights]
        bias = torch.cat(biases).to(self.kernels.device) if biases else None
        return self.kernels.pack(*matrices, bias=bias)

    def summed(self, name: str) -> Packed:
        """A projection whose outputs all ranks sum."""
        if self.rank:
            self.weights.pop(f"{name}.bias", None)
        return self.linear(name)

    def layer(self, index: int) -> DecoderLayer:
        spec, prefix = self.spec, f"model.layers.{index}."
        attention = f"{prefix}self_attn."
        return DecoderLayer(
            attention_norm=self.norm(f"{prefix}input_layernorm"),
            qkv=self.linear(*(f"{attention}{part}_proj" for part in "qkv")),
            query_norm=self.norm(f"{attention}q_norm") if spec.qk_norm else None,
            key_norm=self.norm(f"{attention}k_norm") if spec.qk_norm else None,
            attention_out=self.summed(f"{attention}o_proj"),
            attention_post_norm=self._post_norm(f"{prefix}attention_post_norm"),
            mlp_norm=self.norm(f"{prefix}post_attention_layernorm"),
            mlp=self._mlp(f"{prefix}mlp."),
            mlp_post_norm=self._post_norm(f"{prefix}mlp_post_norm"),
        )

    def _post_norm(self, name: str) -> Tensor | None:
        return self.norm(name) if self.spec.post_norms else None

    def _mlp(self, prefix: str) -> GatedMlp | Experts:
        experts = self.spec.experts
        if experts is None:
            return self._gated(prefix)
        return Experts(
            router=self.linear(f"{prefix}gate"),
            experts=tuple(self._gated(f"{prefix}experts.{i}.") for i in range(experts.count)),
            per_token=experts.per_token,
            normalise=experts.normalise,
        )

    def _gated(self, prefix: str) -> GatedMlp:
        return GatedMlp(
            gate_up=self.linear(f"{prefix}gate_proj", f"{prefix}up_proj"),
            down=self.summed(f"{prefix}down_proj"),
            activation=self.spec.activation,
        )
