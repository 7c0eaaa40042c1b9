"""Qwen3 with experts in place of MLPs, in every layer."""

from __future__ import annotations

from dataclasses import replace

from chairlift.cluster.families.family import MOST_EXPERTS, Family, with_windows
from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import ExpertsSpec, ModelSpec

__all__ = ["QWEN3_MOE"]


def _describe(base: ModelSpec, config: Fields) -> ModelSpec:
    if config.items("mlp_only_layers"):
        raise config.unsupported("mlp_only_layers")
    if config.size("decoder_sparse_step", 1) != 1:
        raise config.unsupported("decoder_sparse_step")
    bias = config.flag("attention_bias")
    local = range(base.num_layers if config.flag("use_sliding_window") else 0)
    # Transformers 5 writes the name that Mixtral has for it.
    usual = config.size("num_local_experts", 128, most=MOST_EXPERTS)
    count = config.size("num_experts", usual, most=MOST_EXPERTS)
    return replace(
        with_windows(base, config, local),
        qk_norm=True,
        attention_bias=bias,
        attention_out_bias=bias,
        experts=ExpertsSpec(
            count=count,
            per_token=config.size("num_experts_per_tok"),
            intermediate_size=config.size("moe_intermediate_size"),
            normalise=config.flag("norm_topk_prob"),
        ),
    )


QWEN3_MOE = Family(
    "qwen3_moe",
    ("Qwen3MoeForCausalLM",),
    _describe,
    settings=frozenset(
        {
            "attention_bias",
            "decoder_sparse_step",
            "mlp_only_layers",
            "moe_intermediate_size",
            "norm_topk_prob",
            "num_experts",
            "num_experts_per_tok",
            "num_local_experts",
            "sliding_window",
            "use_sliding_window",
        }
    ),
    defaults={
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "sliding_window": 4096,
    },
)
