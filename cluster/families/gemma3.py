"""Gemma 3: a Gemma 2 with normed heads, and two rotary embeddings in place of soft caps.

Of models that also see images, the text model is read; the rest of their files is left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chairlift.cluster.families.family import (
    Family,
    InGguf,
    StoredTensor,
    local_layers,
    with_windows,
)
from chairlift.cluster.families.gemma2 import SETTINGS, as_gemma, as_gemma_in_gguf, stored
from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import ModelSpec, RopeSpec

__all__ = ["GEMMA3", "GEMMA3_WITH_IMAGES"]

_DEFAULTS = {
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1_000_000.0,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "vocab_size": 262208,
}
"""Published configurations of the models that see images leave most of these out."""


def _describe(base: ModelSpec, config: Fields) -> ModelSpec:
    if config.flag("use_bidirectional_attention"):
        raise config.unsupported("use_bidirectional_attention")
    usual = config.size("_sliding_window_pattern", 6)
    period = config.size("sliding_window_pattern", usual)
    local = local_layers(config, base.num_layers, _often_local(period))
    spec = with_windows(as_gemma(base, config), config, local)
    return _with_local_rope(spec, local, _local_rope(config, base.head_dim))


def _describe_gguf(base: ModelSpec, fields: Fields) -> ModelSpec:
    often = _often_local(fields.size("attention.sliding_window_pattern", 6))
    local = frozenset(filter(often, range(base.num_layers)))
    spec = as_gemma_in_gguf(base, fields, largest=62)
    spec = with_windows(spec, fields, local, "attention.sliding_window")
    theta = fields.number("rope.freq_base_swa", 10000.0)
    return _with_local_rope(spec, local, RopeSpec(theta, base.head_dim))


def _often_local(period: int) -> Callable[[int], bool]:
    """All layers but every ``period``-th."""
    return lambda layer: (layer + 1) % period != 0


def _with_local_rope(spec: ModelSpec, local: frozenset[int], rope: RopeSpec) -> ModelSpec:
    """Local layers have their own rotation even where the window holds everything."""
    return replace(spec, qk_norm=True, local_layers=local, local_rope=rope if local else None)


def _local_rope(config: Fields, head_dim: int) -> RopeSpec:
    """Local layers are never stretched."""
    section = config.section("rope_parameters").section("sliding_attention")
    if section.text("rope_type", "default") != "default":
        raise section.unsupported("rope_type")
    theta = config.number("rope_local_base_freq", 10000.0)
    return RopeSpec(theta=section.number("rope_theta", theta), dim=head_dim)


def _stored_with_images(spec: ModelSpec, name: str) -> StoredTensor:
    return StoredTensor(f"language_model.{stored(spec, name).name}")


_SETTINGS = SETTINGS | {
    "rope_local_base_freq",
    "sliding_window_pattern",
    "use_bidirectional_attention",
}

GEMMA3 = Family(
    "gemma3",
    ("Gemma3ForCausalLM",),
    _describe,
    settings=_SETTINGS,
    defaults=_DEFAULTS,
    stored=stored,
    gguf=InGguf(
        _describe_gguf,
        frozenset(
            {
                "attention.sliding_window",
                "attention.sliding_window_pattern",
                "final_logit_softcapping",
                "rope.freq_base_swa",
            }
        ),
    ),
)
GEMMA3_WITH_IMAGES = Family(
    "gemma3_with_images",
    ("Gemma3ForConditionalGeneration",),
    _describe,
    settings=_SETTINGS,
    defaults=_DEFAULTS,
    stored=_stored_with_images,
    section="text_config",
)
