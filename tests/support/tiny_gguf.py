"""Tiny models of several families as GGUF files, as llama.cpp's converter makes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf

__all__ = ["write_family_gguf"]

_ARCHITECTURES = {
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}


def write_family_gguf(path: Path, model: Any, *, pattern: int | None = None) -> Path:
    """Write a model of transformers in float32.

    Args:
        path: of the file.
        model: whose rows of queries and keys stay in their order, as for all but Llama.
        pattern: of layers with a window, if the file says so.
    """
    config = model.config
    architecture = _ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if hasattr(config, "head_dim"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    _add_rope(writer, config.rope_parameters)
    if config.model_type.startswith("gemma"):
        _add_gemma(writer, config, pattern)
    writer.add_token_list([f"t{token}" for token in range(config.vocab_size)])
    writer.add_eos_token_id(1)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        offset = 1.0 if config.model_type.startswith("gemma") and "norm" in name else 0.0
        file_name = names.get_name(name, (".weight", ".bias"))
        writer.add_tensor(file_name, (tensor + offset).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_rope(writer: gguf.GGUFWriter, parameters: dict[str, Any]) -> None:
    local = parameters.get("sliding_attention")
    parameters = parameters.get("full_attention", parameters)
    writer.add_rope_freq_base(parameters["rope_theta"])
    if parameters["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(parameters["factor"])
    if local is not None:
        writer.add_float32(f"{writer.arch}.rope.freq_base_swa", local["rope_theta"])


def _add_gemma(writer: gguf.GGUFWriter, config: Any, pattern: int | None) -> None:
    writer.add_sliding_window(config.sliding_window)
    if config.attn_logit_softcapping is not None:
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if config.final_logit_softcapping is not None:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if pattern is not None:
        writer.add_sliding_window_pattern(pattern)
