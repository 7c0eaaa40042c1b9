"""Small random Llamas of any shape, and the same model in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from chairlift.cluster.model_files import weight_shapes
from chairlift.cluster.model_spec import ModelFormat, ModelSpec, RopeScaling, RopeSpec

TINY: dict[str, Any] = {
    "path": Path("tiny"),
    "format": ModelFormat.SAFETENSORS,
    "name": "tiny",
    "architecture": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_layers": 3,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope": RopeSpec(theta=10000.0, dim=8),
    "context_length": 256,
    "tied_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "eos_token_ids": (0,),
}


def tiny_spec(**changes: Any) -> ModelSpec:
    spec = TINY | changes
    if "rope" not in changes:
        spec["rope"] = RopeSpec(theta=10000.0, dim=spec["head_dim"])
    spec.setdefault("attention_out_bias", spec["attention_bias"])
    return ModelSpec(**spec)


def random_weights(spec: ModelSpec, seed: int = 0) -> dict[str, torch.Tensor]:
    """Of a size that gives logits a spread of a few units, so that greedy tokens are no ties."""
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in weight_shapes(spec).items():
        if name == "rope_freqs":
            weights[name] = 1 + 7 * torch.rand(shape, generator=random)
        elif "norm" in name:
            weights[name] = 0.5 + torch.rand(shape, generator=random)
        else:
            scale = 0.3 if name.endswith("bias") else 1.5 * shape[-1] ** -0.5
            weights[name] = scale * torch.randn(shape, generator=random)
    return weights


def transformers_model(spec: ModelSpec, weights: dict[str, torch.Tensor]) -> LlamaForCausalLM:
    """The same model in transformers, float32; ``weights`` are shared or copied, not changed."""
    kind = "default" if spec.rope.scaling in (RopeScaling.NONE, RopeScaling.FACTORS) else None
    dynamic = spec.rope.scaling is RopeScaling.DYNAMIC
    parameters: dict[str, Any] = dict(spec.rope.parameters)
    if spec.rope.scaling is RopeScaling.LONGROPE:
        # Every context that is tested is longer than the trained one.
        divisors = list(spec.rope.divisors)
        parameters |= {"long_factor": divisors, "short_factor": divisors}
        parameters["original_max_position_embeddings"] = 8
    trained = parameters.pop("original_max_position_embeddings", None) if dynamic else None
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        rms_norm_eps=spec.rms_norm_eps,
        max_position_embeddings=int(trained or spec.context_length),
        tie_word_embeddings=spec.tied_embeddings,
        attention_bias=spec.attention_bias,
        mlp_bias=spec.mlp_bias,
        rope_parameters={
            "rope_type": kind or spec.rope.scaling.value,
            "rope_theta": spec.rope.theta,
            **parameters,
        },
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    state = {name: tensor for name, tensor in weights.items() if name != "rope_freqs"}
    if spec.tied_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, assign=True)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    if "rope_freqs" in weights:
        model.model.rotary_emb.inv_freq /= weights["rope_freqs"]
    return model.eval()
