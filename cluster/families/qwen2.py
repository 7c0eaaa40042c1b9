"""Qwen2 and 2.5: queries, keys and values have a bias; later layers may have a window."""

from __future__ import annotations

from dataclasses import replace

from chairlift.cluster.families.family import Family, InGguf, local_layers, with_windows
from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import ModelSpec

__all__ = ["QWEN2", "WINDOW_SETTINGS", "with_late_windows"]

WINDOW_SETTINGS = frozenset(
    {"layer_types", "max_window_layers", "sliding_window", "use_sliding_window"}
)


def with_late_windows(base: ModelSpec, config: Fields) -> ModelSpec:
    """Layers from ``max_window_layers`` on have a window, if there is one at all."""
    if not config.flag("use_sliding_window"):
        # What ``sliding_window`` says then means nothing.
        if local_layers(config, base.num_layers):
            raise config.unsupported("layer_types")
        return base
    first = config.size("max_window_layers", 28, least=0)
    local = local_layers(config, base.num_layers, lambda layer: layer >= first)
    return with_windows(base, config, local)


def _describe(base: ModelSpec, config: Fields) -> ModelSpec:
    return replace(with_late_windows(base, config), attention_bias=True)


QWEN2 = Family(
    "qwen2",
    ("Qwen2ForCausalLM",),
    _describe,
    settings=WINDOW_SETTINGS,
    defaults={"sliding_window": 4096},
    gguf=InGguf(),
)
