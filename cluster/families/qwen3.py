"""Qwen3: heads of queries and keys are normed before they are rotated."""

from __future__ import annotations

from dataclasses import replace

from chairlift.cluster.families.family import Family, InGguf
from chairlift.cluster.families.qwen2 import WINDOW_SETTINGS, with_late_windows
from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import ModelSpec

__all__ = ["QWEN3"]


def _describe(base: ModelSpec, config: Fields) -> ModelSpec:
    bias = config.flag("attention_bias")
    spec = with_late_windows(base, config)
    return replace(spec, qk_norm=True, attention_bias=bias, attention_out_bias=bias)


QWEN3 = Family(
    "qwen3",
    ("Qwen3ForCausalLM",),
    _describe,
    settings=WINDOW_SETTINGS | {"attention_bias"},
    defaults={"head_dim": 128, "sliding_window": 4096},
    gguf=InGguf(lambda base, fields: replace(base, qk_norm=True)),
)
