"""Gemma 2: capped scores and logits, four norms a layer, every other layer with a window."""

from __future__ import annotations

from dataclasses import replace

from chairlift.cluster.families.family import (
    Family,
    InGguf,
    StoredTensor,
    local_layers,
    with_windows,
)
from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import ModelSpec

__all__ = ["GEMMA2", "SETTINGS", "as_gemma", "as_gemma_in_gguf", "stored"]

SETTINGS = frozenset(
    {
        "attention_bias",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "hidden_act",
        "layer_types",
        "query_pre_attn_scalar",
        "sliding_window",
    }
)

_NORMS = {
    "post_attention_layernorm": "pre_feedforward_layernorm",
    "attention_post_norm": "post_attention_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
"""Gemma's ``post_attention_layernorm`` is that of what attention adds."""


def as_gemma(base: ModelSpec, config: Fields) -> ModelSpec:
    """What Gemma 2 and 3 have in common."""
    if config.text("hidden_activation") != "gelu_pytorch_tanh":
        raise config.unsupported("hidden_activation")
    bias = config.flag("attention_bias")
    return replace(
        base,
        attention_bias=bias,
        attention_out_bias=bias,
        query_scale=config.number("query_pre_attn_scalar") ** -0.5,
        attention_soft_cap=_cap(config, "attn_logit_softcapping"),
        final_soft_cap=_cap(config, "final_logit_softcapping"),
        activation="gelu_tanh",
        post_norms=True,
        norm_offset=1.0,
        embedding_scale=base.hidden_size**0.5,
    )


def as_gemma_in_gguf(base: ModelSpec, fields: Fields, largest: int) -> ModelSpec:
    """What Gemma 2 and 3 have in common there; llama.cpp's converter adds the offset to norms.

    The scale of queries is not in the file. It is the usual one but for the 27B models, which
    llama.cpp, too, knows by their number of layers: ``largest``.
    """
    scale = (base.hidden_size // base.num_heads) ** -0.5
    return replace(
        base,
        query_scale=scale if base.num_layers == largest else None,
        final_soft_cap=_cap(fields, "final_logit_softcapping"),
        activation="gelu_tanh",
        post_norms=True,
        embedding_scale=base.hidden_size**0.5,
    )


def _cap(config: Fields, key: str) -> float | None:
    return None if config.get(key) is None else config.number(key)


def stored(spec: ModelSpec, name: str) -> StoredTensor:
    for canonical, file_name in _NORMS.items():
        if f".{canonical}." in name:
            return StoredTensor(name.replace(canonical, file_name))
    return StoredTensor(name)


def _describe(base: ModelSpec, config: Fields) -> ModelSpec:
    local = local_layers(config, base.num_layers, lambda layer: layer % 2 == 0)
    return with_windows(as_gemma(base, config), config, local)


def _describe_gguf(base: ModelSpec, fields: Fields) -> ModelSpec:
    spec = as_gemma_in_gguf(base, fields, largest=46)
    spec = replace(spec, attention_soft_cap=_cap(fields, "attn_logit_softcapping"))
    local = range(0, base.num_layers, 2)
    return with_windows(spec, fields, local, "attention.sliding_window")


GEMMA2 = Family(
    "gemma2",
    ("Gemma2ForCausalLM",),
    _describe,
    settings=SETTINGS,
    defaults={
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    stored=stored,
    gguf=InGguf(
        _describe_gguf,
        frozenset(
            {"attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"}
        ),
    ),
)
