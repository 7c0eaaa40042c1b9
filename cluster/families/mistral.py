"""Mistral: a Llama whose layers all have a window, or none has."""

from __future__ import annotations

from chairlift.cluster.families.family import Family, with_windows
from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import ModelSpec

__all__ = ["MISTRAL"]


def _describe(base: ModelSpec, config: Fields) -> ModelSpec:
    return with_windows(base, config, range(base.num_layers))


MISTRAL = Family(
    "mistral",
    ("MistralForCausalLM",),
    _describe,
    settings=frozenset({"sliding_window"}),
    defaults={"sliding_window": 4096},
)
