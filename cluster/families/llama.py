"""Llama 2, 3 and whatever else has their shape: what every other family is compared with.

In GGUF files Mistral is a Llama, too.
"""

from __future__ import annotations

from dataclasses import replace

from chairlift.cluster.families.family import Family, InGguf
from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import ModelSpec

__all__ = ["LLAMA"]


def _describe(base: ModelSpec, config: Fields) -> ModelSpec:
    bias = config.flag("attention_bias")
    return replace(
        base,
        attention_bias=bias,
        attention_out_bias=bias,
        mlp_bias=config.flag("mlp_bias"),
    )


LLAMA = Family(
    "llama",
    ("LlamaForCausalLM",),
    _describe,
    settings=frozenset({"attention_bias", "mlp_bias"}),
    gguf=InGguf(pairs_adjacent=True),
)
