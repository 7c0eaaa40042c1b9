"""From the ``config.json`` of a Hugging Face folder to a ``ModelSpec``.

Owns the meaning of the keys, in the spellings of transformers 4 and 5. Knows nothing of the
weights (``workers.weights_safetensors``) or the tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chairlift.cluster.errors import ModelError
from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import ModelFormat, ModelSpec, RopeScaling, RopeSpec

__all__ = ["read_folder_spec", "read_json"]

_ARCHITECTURES: Mapping[str, str] = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "mistral"}

_SCALING_NEEDS: Mapping[str, tuple[RopeScaling, tuple[str, ...]]] = {
    "default": (RopeScaling.NONE, ()),
    "linear": (RopeScaling.LINEAR, ("factor",)),
    "dynamic": (RopeScaling.DYNAMIC, ("factor",)),
    "yarn": (RopeScaling.YARN, ("factor",)),
    "llama3": (RopeScaling.LLAMA3, ("factor", "low_freq_factor", "high_freq_factor")),
}
_NO_NUMBERS = frozenset({"type", "rope_type", "rope_theta", "partial_rotary_factor"})


def read_folder_spec(folder: Path) -> ModelSpec:
    """Describe the model in a folder; ModelError when damaged or of an unsupported kind."""
    config = Fields(str(folder / "config.json"), read_json(folder / "config.json"))
    architecture = _architecture(config)
    if config.text("hidden_act", "silu") != "silu":
        raise config.unsupported("hidden_act")
    if config.get("quantization_config") is not None:
        raise config.unsupported("quantization_config")

    context_length = config.size("max_position_embeddings")
    window = config.get("sliding_window")
    if window is not None and config.size("sliding_window") < context_length:
        raise config.unsupported("sliding_window")
    hidden_size = config.size("hidden_size")
    vocab_size = config.size("vocab_size")
    num_heads = config.size("num_attention_heads")
    head_dim = config.size("head_dim", hidden_size // num_heads or 1)
    return ModelSpec(
        path=folder,
        format=ModelFormat.SAFETENSORS,
        name=folder.resolve().name,
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size"),
        num_layers=config.size("num_hidden_layers", most=4096),
        num_heads=num_heads,
        num_kv_heads=config.size("num_key_value_heads", num_heads),
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=_rope(config, head_dim, context_length),
        context_length=context_length,
        tied_embeddings=config.flag("tie_word_embeddings"),
        attention_bias=config.flag("attention_bias"),
        mlp_bias=config.flag("mlp_bias"),
        eos_token_ids=_end_tokens(folder, config, vocab_size),
    )


def read_json(path: Path) -> dict[str, Any]:
    """An object from a JSON file; ModelError, one line, when it is something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ModelError(f"{path} is no JSON; download it again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} holds no JSON object; download it again")
    return value


def _architecture(config: Fields) -> str:
    names = config.items("architectures")
    for name in names:
        if isinstance(name, str) and name in _ARCHITECTURES:
            return _ARCHITECTURES[name]
    found = ", ".join(map(repr, names)) or "missing"
    raise config.error(f"its architecture is {found}; Chairlift runs {', '.join(_ARCHITECTURES)}")


def _rope(config: Fields, head_dim: int, context_length: int) -> RopeSpec:
    """Transformers 5 keeps all of it in ``rope_parameters``; before, theta stood beside it."""
    section = config.section("rope_parameters" if config.get("rope_parameters") else "rope_scaling")
    for fields in (config, section):
        if fields.number("partial_rotary_factor", 1.0) != 1.0:
            raise fields.unsupported("partial_rotary_factor")
    key = "rope_type" if section.get("rope_type") is not None else "type"
    kind = section.text(key, "default")
    if kind not in _SCALING_NEEDS:
        raise section.unsupported(key)
    scaling, needed = _SCALING_NEEDS[kind]
    parameters = section.numbers(skip=_NO_NUMBERS)
    for name in needed:
        section.number(name)
    if scaling is RopeScaling.NONE:
        parameters = {}
    elif scaling in (RopeScaling.YARN, RopeScaling.LLAMA3):
        trained = "original_max_position_embeddings"
        parameters[trained] = section.number(trained, float(context_length))
    theta = section.number("rope_theta", config.number("rope_theta", 10000.0))
    return RopeSpec(theta=theta, dim=head_dim, scaling=scaling, parameters=parameters)


def _end_tokens(folder: Path, config: Fields, vocab_size: int) -> tuple[int, ...]:
    """Those for generation first, then the configuration's."""
    found: dict[int, None] = {}
    path = folder / "generation_config.json"
    if path.exists():
        generation = Fields(str(path), read_json(path))
        found.update(dict.fromkeys(generation.token_ids("eos_token_id", vocab_size)))
    found.update(dict.fromkeys(config.token_ids("eos_token_id", vocab_size)))
    return tuple(found)
