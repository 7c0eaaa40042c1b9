"""Phi-3 and 4: fused projections, part of each head rotated, long contexts by divisors."""

from __future__ import annotations

from chairlift.cluster.families.family import Family, StoredTensor, with_windows
from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import ModelSpec, RopeScaling

__all__ = ["PHI3"]


def _describe(base: ModelSpec, config: Fields) -> ModelSpec:
    if base.rope.scaling not in (RopeScaling.NONE, RopeScaling.LONGROPE):
        raise config.error(f"rotary scaling {base.rope.scaling.value!r} is not supported")
    return with_windows(base, config, range(base.num_layers))


def _stored(spec: ModelSpec, name: str) -> StoredTensor:
    """Queries, keys and values are one matrix; gate and up are one."""
    heads, kv_heads = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    inner = spec.intermediate_size
    fused = {
        "self_attn.q_proj": ("self_attn.qkv_proj", 0, heads),
        "self_attn.k_proj": ("self_attn.qkv_proj", heads, kv_heads),
        "self_attn.v_proj": ("self_attn.qkv_proj", heads + kv_heads, kv_heads),
        "mlp.gate_proj": ("mlp.gate_up_proj", 0, inner),
        "mlp.up_proj": ("mlp.gate_up_proj", inner, inner),
    }
    for module, (stored, first_row, rows) in fused.items():
        if f".{module}." in name:
            return StoredTensor(name.replace(module, stored), first_row, rows)
    return StoredTensor(name)


PHI3 = Family(
    "phi3",
    ("Phi3ForCausalLM",),
    _describe,
    settings=frozenset({"partial_rotary_factor", "sliding_window"}),
    defaults={"rms_norm_eps": 1e-5},
    stored=_stored,
)
