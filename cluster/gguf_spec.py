"""From the metadata of a GGUF file to a ``ModelSpec``.

Owns the keys that all families share, as llama.cpp writes and reads them; those of one family are
in ``cluster.families``. Knows neither the container's bytes (``cluster.gguf_file``) nor the
tokenizer (``router.tokenizer_gguf``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf.constants import TokenType

from chairlift.cluster.families import ALL_FAMILIES
from chairlift.cluster.gguf_file import GgufFile
from chairlift.cluster.model_fields import Fields
from chairlift.cluster.model_spec import ModelFormat, ModelSpec, RopeScaling, RopeSpec

__all__ = ["read_gguf_spec"]

_SETTINGS = (
    "attention.scale",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attn_logit_softcapping",
    "expert_count",
    "final_logit_softcapping",
    "rope.freq_base_swa",
)
"""Those that change what is computed: a family that does not read one cannot have it."""

_MATRIX = 2
"""Dimensions."""

_END_MARKERS = frozenset(
    {
        "</s>",
        "<|end_of_text|>",
        "<|end_of_turn|>",
        "<|endoftext|>",
        "<end_of_turn>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|im_end|>",
    }
)
"""Control tokens that end a turn or a document in every vocabulary that has them."""

_YARN_NAMES: Mapping[str, str] = {
    "original_context_length": "original_max_position_embeddings",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


def read_gguf_spec(path: Path) -> ModelSpec:
    """Describe the model in a GGUF file; ModelError when damaged or of an unsupported kind."""
    file = GgufFile.open(path)
    everything = Fields(str(path), file.metadata)
    architecture = everything.text("general.architecture")
    known = {family.name: family.gguf for family in ALL_FAMILIES if family.gguf is not None}
    if architecture not in known:
        raise everything.error(
            f"its architecture is {architecture!r}; Chairlift runs {', '.join(known)} as GGUF"
        )
    if everything.get("split.count") not in (None, 0, 1):
        raise everything.error("is one part of several; join them with llama-gguf-split --merge")
    fields = Fields(str(path), file.metadata, prefix=f"{architecture}.")
    family = known[architecture]
    for key in _SETTINGS:
        if key not in family.settings and fields.get(key):
            raise fields.unsupported(key)
    return family.describe(_as_llama(file, everything, fields), fields)


def _as_llama(file: GgufFile, everything: Fields, fields: Fields) -> ModelSpec:
    """By the keys that all families share."""
    hidden_size = fields.size("embedding_length")
    context_length = fields.size("context_length")
    tokens = everything.items("tokenizer.ggml.tokens")
    vocab_size = _vocab_size(file, everything, len(tokens), hidden_size)
    num_heads = fields.size_in_layers("attention.head_count")
    head_dim = fields.size("attention.key_length", hidden_size // num_heads or 1)
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.size(key, head_dim) != head_dim:
            raise fields.unsupported(key)
    return ModelSpec(
        path=file.path,
        format=ModelFormat.GGUF,
        name=_slug(everything.text("general.name", "")) or file.path.stem,
        architecture=everything.text("general.architecture"),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=fields.size_in_layers("feed_forward_length"),
        num_layers=fields.size("block_count", most=len(file.tensors)),
        num_heads=num_heads,
        num_kv_heads=fields.size_in_layers("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(file, fields, head_dim, context_length),
        context_length=context_length,
        tied_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        attention_out_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        eos_token_ids=_end_tokens(everything, tokens, vocab_size),
        stored_type=_stored_type(file),
    )


def _stored_type(file: GgufFile) -> str:
    """Of quantised ones bfloat16: hidden states of some models overflow in half precision."""
    kinds = {tensor.type_name for tensor in file.tensors.values() if len(tensor.shape) == _MATRIX}
    if kinds == {"F32"}:
        return "float32"
    return "float16" if kinds == {"F16"} else "bfloat16"


def _vocab_size(file: GgufFile, everything: Fields, num_tokens: int, hidden_size: int) -> int:
    """Rows of the embedding; the vocabulary may be shorter, because rows are padded."""
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise everything.error("has no tensor token_embd.weight; it is no whole model")
    if len(embedding.shape) != _MATRIX or embedding.shape[1] != hidden_size:
        raise everything.error(
            f"token_embd.weight has the shape {embedding.shape}, expected rows of {hidden_size};"
            " download the file again"
        )
    rows = embedding.shape[0]
    if num_tokens > rows:
        raise everything.error(
            f"has {num_tokens} tokens but {rows} rows in token_embd.weight; download the file again"
        )
    return rows


def _rope(file: GgufFile, fields: Fields, head_dim: int, context_length: int) -> RopeSpec:
    """Without a kind, a factor means linear scaling; ``rope.scale_linear`` is its older name."""
    architecture = file.metadata["general.architecture"]
    scaling = Fields(str(file.path), file.metadata, prefix=f"{architecture}.rope.scaling.")
    factor = scaling.number("factor", fields.number("rope.scale_linear", 1.0))
    kind = scaling.text("type", "linear")
    divisors = file.tensors.get("rope_freqs.weight")
    parameters: dict[str, float] = {}
    if kind == "none" or (kind == "linear" and factor == 1.0):
        result = RopeScaling.NONE if divisors is None else RopeScaling.FACTORS
    elif kind == "linear" and divisors is None:
        result, parameters = RopeScaling.LINEAR, {"factor": factor}
    elif kind == "yarn" and divisors is None:
        result, parameters = RopeScaling.YARN, _yarn(scaling, factor, context_length)
    else:
        raise scaling.unsupported("type")
    theta = fields.number("rope.freq_base", 10000.0)
    return RopeSpec(theta=theta, dim=head_dim, scaling=result, parameters=parameters)


def _yarn(scaling: Fields, factor: float, context_length: int) -> dict[str, float]:
    """By Hugging Face's names. llama.cpp multiplies its attention factor with the usual one."""
    parameters = {"factor": factor, "original_max_position_embeddings": float(context_length)}
    for key, name in _YARN_NAMES.items():
        if scaling.get(key) is not None:
            parameters[name] = scaling.number(key)
    attention = scaling.number("yarn_attn_factor", scaling.number("attn_factor", 1.0))
    if attention != 1.0:
        parameters["attention_factor"] = attention * (1.0 + 0.1 * math.log(max(factor, 1.0)))
    return parameters


def _end_tokens(everything: Fields, tokens: list[Any], vocab_size: int) -> tuple[int, ...]:
    """The file's own end tokens first, then the control tokens that are known end markers.

    The second part matters for chat models whose file names only one of several: SmolLM2 names
    ``<|im_end|>``, but closes a text without chat template with ``<|endoftext|>``.
    """
    found: dict[int, None] = {}
    for kind in ("eos", "eot", "eom"):
        key = f"tokenizer.ggml.{kind}_token_id"
        found.update(dict.fromkeys(everything.token_ids(key, vocab_size)))
    kinds = everything.items("tokenizer.ggml.token_type")
    for token, (text, kind) in enumerate(zip(tokens, kinds, strict=False)):
        if kind == TokenType.CONTROL and text in _END_MARKERS:
            found[token] = None
    return tuple(found)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9._]+", "-", name.lower()).strip("-.")
