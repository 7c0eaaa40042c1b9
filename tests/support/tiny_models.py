"""A tiny random model of each family, made and saved by transformers.

Widths are no powers of two, windows shorter than the prompt, contexts longer than the trained
ones: what a family does differently makes a difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers

__all__ = ["TINY_MODELS", "TinyModel"]

VOCAB = 97
_WINDOW = 12

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 60,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class TinyModel:
    """One configuration.

    Attributes:
        kind: what transformers' classes for it begin with.
        config: keys that differ from the common ones.
        norm_offset: what the family adds to the weights of norms.
    """

    kind: str
    config: dict[str, Any] = field(default_factory=dict)
    norm_offset: float = 0.0

    def but(self, **config: Any) -> TinyModel:
        """The same with other keys."""
        return replace(self, config=self.config | config)

    def build(self) -> Any:
        """In float32, with weights that give logits a spread of a few units."""
        model = self._model().eval()
        random = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:
                    spread = 0.5 + torch.rand(weight.shape, generator=random)
                    weight.copy_(spread - self.norm_offset)
                else:
                    scale = 0.3 if name.endswith("bias") else 1.5 * weight.shape[-1] ** -0.5
                    weight.copy_(scale * torch.randn(weight.shape, generator=random))
        return model

    def save(self, folder: Path) -> Any:
        """Write it, and hand it back."""
        model = self.build()
        model.save_pretrained(folder)
        return model

    def _model(self) -> Any:
        name = "Gemma3Text" if self.kind == "Gemma3" else self.kind
        config = getattr(transformers, f"{name}Config")(
            **(_COMMON | self.config), attn_implementation="eager"
        )
        return getattr(transformers, f"{self.kind}ForCausalLM")(config)


class _TinyWithImages(TinyModel):
    def _model(self) -> Any:
        config = transformers.Gemma3Config(
            text_config=transformers.Gemma3TextConfig(**(_COMMON | self.config)),
            vision_config={
                "model_type": "siglip_vision_model",
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            attn_implementation="eager",
        )
        return transformers.Gemma3ForConditionalGeneration(config)


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0} | parameters}


_LLAMA3 = _rope(
    "llama3",
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
_QWEN_WINDOW = {"use_sliding_window": True, "sliding_window": _WINDOW, "max_window_layers": 1}
_GEMMA = {"head_dim": 16, "sliding_window": _WINDOW, "query_pre_attn_scalar": 24}
_GEMMA3 = _GEMMA | {
    "num_hidden_layers": 4,
    "layer_types": [
        "sliding_attention",
        "sliding_attention",
        "full_attention",
        "sliding_attention",
    ],
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
}
_PHI3 = {"hidden_size": 120}


def _long_rope(trained: int) -> dict[str, Any]:
    return {
        "original_max_position_embeddings": trained,
        **_rope(
            "longrope",
            partial_rotary_factor=0.7,
            short_factor=[1.0 + 0.1 * i for i in range(7)],
            long_factor=[1.5 + 0.7 * i for i in range(7)],
        ),
    }


_MOE = {"head_dim": 16, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}

TINY_MODELS: dict[str, TinyModel] = {
    "llama 3": TinyModel("Llama", _LLAMA3 | {"head_dim": 16}),
    "llama, tied, biases": TinyModel(
        "Llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    ),
    "mistral": TinyModel("Mistral", {"sliding_window": None}),
    "mistral, window": TinyModel("Mistral", {"sliding_window": _WINDOW}),
    "qwen 2": TinyModel("Qwen2", {"tie_word_embeddings": True}),
    "qwen 2, window": TinyModel("Qwen2", _QWEN_WINDOW),
    "qwen 3": TinyModel("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen 3, window, biases": TinyModel(
        "Qwen3", _QWEN_WINDOW | {"head_dim": 16, "attention_bias": True}
    ),
    "gemma 2": TinyModel(
        "Gemma2", _GEMMA | {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 4.0}, 1.0
    ),
    "gemma 2, untied": TinyModel("Gemma2", _GEMMA | {"tie_word_embeddings": False}, 1.0),
    "gemma 3": TinyModel("Gemma3", _GEMMA3, 1.0),
    "gemma 3, window beyond context": TinyModel("Gemma3", _GEMMA3 | {"sliding_window": 4096}, 1.0),
    "gemma 3 with images": _TinyWithImages("Gemma3", _GEMMA3, 1.0),
    "phi 3": TinyModel("Phi3", _PHI3 | _rope("default", partial_rotary_factor=0.5)),
    "phi 3, window": TinyModel("Phi3", _PHI3 | {"sliding_window": _WINDOW}),
    "phi 3, long": TinyModel("Phi3", _PHI3 | _long_rope(32)),
    "phi 3, short": TinyModel("Phi3", _PHI3 | _long_rope(128)),
    "mixtral": TinyModel("Mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral, window": TinyModel("Mixtral", {"num_local_experts": 3, "sliding_window": _WINDOW}),
    "qwen 3 moe": TinyModel("Qwen3Moe", _MOE),
    "qwen 3 moe, normalised, window": TinyModel(
        "Qwen3Moe",
        _MOE | {"norm_topk_prob": True, "use_sliding_window": True, "sliding_window": _WINDOW},
    ),
}
