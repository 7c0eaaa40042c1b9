"""Mixtral: a Mistral with experts in place of MLPs."""

from __future__ import annotations

from dataclasses import replace

from chairlift.cluster.families.family import MOST_EXPERTS, Family, StoredTensor, with_windows
from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import ExpertsSpec, ModelSpec

__all__ = ["MIXTRAL"]

_PROJECTIONS = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}


def _describe(base: ModelSpec, config: Fields) -> ModelSpec:
    experts = ExpertsSpec(
        count=config.size("num_local_experts", most=MOST_EXPERTS),
        per_token=config.size("num_experts_per_tok"),
        intermediate_size=base.intermediate_size,
        normalise=True,
    )
    spec = with_windows(base, config, range(base.num_layers))
    return replace(spec, experts=experts)


def _stored(spec: ModelSpec, name: str) -> StoredTensor:
    for projection, letter in _PROJECTIONS.items():
        name = name.replace(f".{projection}.", f".{letter}.")
    return StoredTensor(name.replace(".mlp.", ".block_sparse_moe."))


MIXTRAL = Family(
    "mixtral",
    ("MixtralForCausalLM",),
    _describe,
    settings=frozenset({"num_experts_per_tok", "num_local_experts", "sliding_window"}),
    defaults={
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
    },
    stored=_stored,
)
