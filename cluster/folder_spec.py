"""From the ``config.json`` of a Hugging Face folder to a ``ModelSpec``.

Owns the keys that all families share, in the spellings of transformers 4 and 5; those of one
family are in ``cluster.families``. Knows nothing of the weights (``workers.weights_safetensors``)
or the tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chairlift.cluster.errors import ModelError
from chairlift.cluster.families import ALL_FAMILIES, Family
from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import ModelFormat, ModelSpec
from chairlift.cluster.rope_fields import read_rope

__all__ = ["read_folder_spec", "read_json"]

_WITHOUT_MEANING: Mapping[str, tuple[Any, ...]] = {
    "attention_bias": (False,),
    "attn_logit_softcapping": (),
    "final_logit_softcapping": (),
    "hidden_act": ("silu",),
    "layer_types": (),
    "mlp_bias": (False,),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "partial_rotary_factor": (1.0,),
    "quantization_config": (),
    "query_pre_attn_scalar": (),
    "rope_local_base_freq": (),
    "sliding_window": (),
    "use_bidirectional_attention": (False,),
    "use_sliding_window": (False,),
}
"""Settings that change what is computed, with the values (and null) by which they do not.

A family that does not read such a setting cannot have it: what is ignored gives wrong text.
"""

_OUTER = ("dtype", "eos_token_id", "quantization_config", "tie_word_embeddings", "torch_dtype")
"""What a configuration may say outside of the section for the text model."""

_STORED_TYPES = ("float32", "bfloat16", "float16")


def read_folder_spec(folder: Path) -> ModelSpec:
    """Describe the model in a folder; ModelError when damaged or of an unsupported kind."""
    path = folder / "config.json"
    values = read_json(path)
    family = _family(Fields(str(path), values))
    config = _own_fields(str(path), values, family)
    base = _as_llama(folder, family, config)
    _refuse_unread(base, family, config)
    return family.describe(base, config)


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


def _family(config: Fields) -> Family:
    known = {name: family for family in ALL_FAMILIES for name in family.architectures}
    names = config.items("architectures")
    for name in names:
        if isinstance(name, str) and name in known:
            return known[name]
    found = ", ".join(map(repr, names)) or "missing"
    raise config.error(f"its architecture is {found}; Chairlift runs {', '.join(known)}")


def _own_fields(path: str, values: dict[str, Any], family: Family) -> Fields:
    """Those of the text model, and what the family means by those that are left out."""
    if family.section is not None:
        outer = {key: values[key] for key in _OUTER if values.get(key) is not None}
        inner = values.get(family.section)
        if not isinstance(inner, dict):
            raise Fields(path, values).error(f"{family.section} is no mapping; download it again")
        path, values = f"{path}: {family.section}", outer | inner
    return Fields(path, {**family.defaults, **values})


def _as_llama(folder: Path, family: Family, config: Fields) -> ModelSpec:
    """By the keys that all families share."""
    context_length = config.size("max_position_embeddings")
    hidden_size = config.size("hidden_size")
    vocab_size = config.size("vocab_size")
    num_heads = config.size("num_attention_heads")
    head_dim = config.size("head_dim", hidden_size // num_heads or 1)
    return ModelSpec(
        path=folder,
        format=ModelFormat.SAFETENSORS,
        name=folder.resolve().name,
        architecture=family.name,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size"),
        num_layers=config.size("num_hidden_layers", most=4096),
        num_heads=num_heads,
        num_kv_heads=config.size("num_key_value_heads", num_heads),
        head_dim=head_dim,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope=read_rope(config, head_dim, context_length),
        context_length=context_length,
        tied_embeddings=config.flag("tie_word_embeddings"),
        attention_bias=False,
        mlp_bias=False,
        eos_token_ids=_end_tokens(folder, config, vocab_size),
        stored_type=_stored_type(config),
    )


def _refuse_unread(base: ModelSpec, family: Family, config: Fields) -> None:
    for key in _WITHOUT_MEANING:
        if key not in family.settings and not _means_nothing(
            key, config.get(key), base.context_length
        ):
            raise config.unsupported(key)
    if "partial_rotary_factor" not in family.settings and base.rope.dim != base.head_dim:
        raise config.error("partial_rotary_factor is not supported in models of its kind")
    if "rope_local_base_freq" not in family.settings:
        section = config.section("rope_parameters")
        for kind in ("full_attention", "sliding_attention"):
            if section.get(kind) is not None:
                raise section.unsupported(kind)


def _means_nothing(key: str, value: Any, context_length: int) -> bool:
    if key == "layer_types":
        kinds = value if isinstance(value, list) else []
        return value is None or (bool(kinds) and all(kind == "full_attention" for kind in kinds))
    if key == "sliding_window" and isinstance(value, int):
        return value >= context_length
    return value is None or value in _WITHOUT_MEANING[key]


def _stored_type(config: Fields) -> str:
    key = "dtype" if config.get("dtype") is not None else "torch_dtype"
    stored = config.text(key, "float32")
    if stored not in _STORED_TYPES:
        raise config.unsupported(key)
    return stored


def _end_tokens(folder: Path, config: Fields, vocab_size: int) -> tuple[int, ...]:
    """Those for generation first, then the configuration's."""
    found: dict[int, None] = {}
    path = folder / "generation_config.json"
    if path.exists():
        generation = Fields(str(path), read_json(path))
        found.update(dict.fromkeys(generation.token_ids("eos_token_id", vocab_size)))
    found.update(dict.fromkeys(config.token_ids("eos_token_id", vocab_size)))
    return tuple(found)
