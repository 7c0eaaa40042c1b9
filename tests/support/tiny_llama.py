"""A Llama of a few thousand random weights, written in both formats that Chairlift reads.

The GGUF writer follows llama.cpp's converter, including the order of rotated rows; it shares no
code with the readers that are tested.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS = 40, 32, 64, 2, 4, 2
HEAD_DIM = HIDDEN // HEADS
CONTEXT = 128
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"t{i}" for i in range(3, VOCAB))]

CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}

GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def random_weights(
    *, tied: bool = False, attention_bias: bool = False, mlp_bias: bool = False
) -> dict[str, torch.Tensor]:
    """By Hugging Face's names; the same numbers at each call."""
    random = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        for module, shape in _layer(attention_bias, mlp_bias).items():
            shapes[f"model.layers.{layer}.{module}"] = shape
    shapes["model.norm.weight"] = (HIDDEN,)
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    return {name: torch.randn(shape, generator=random) for name, shape in shapes.items()}


def _layer(attention_bias: bool, mlp_bias: bool) -> dict[str, tuple[int, ...]]:
    kv = KV_HEADS * HEAD_DIM
    linear = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
    }
    for name, shape in linear.items():
        shapes[f"{name}.weight"] = shape
        if attention_bias if name.startswith("self_attn") else mlp_bias:
            shapes[f"{name}.bias"] = shape[:1]
    return shapes


def write_folder(
    folder: Path,
    tensors: Mapping[str, torch.Tensor],
    *,
    shards: int = 1,
    **config: Any,
) -> Path:
    """A Hugging Face folder; ``config`` replaces or adds keys, and None removes one."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {key: value for key, value in (dict(CONFIG) | config).items() if value is not None}
    (folder / "config.json").write_text(json.dumps(values))
    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors")
        return folder
    where = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[shard::shards]}
        save_file(part, folder / file)
        where |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def write_gguf(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    *,
    type_of: Callable[[str], gguf.GGMLQuantizationType] = lambda name: (
        gguf.GGMLQuantizationType.F32
    ),
    metadata: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    without: frozenset[str] = frozenset(),
) -> Path:
    """A GGUF file as llama.cpp's converter makes it.

    Args:
        tensors: by Hugging Face's names; others go into the file under their own names.
        type_of: the encoding of a matrix, by its name in the file; vectors stay float32.
        metadata: adds keys.
        without: keys that are left out.
    """
    writer = gguf.GGUFWriter(path, "llama")
    standard: dict[str, Callable[[], None]] = {
        "context_length": lambda: writer.add_context_length(CONTEXT),
        "embedding_length": lambda: writer.add_embedding_length(HIDDEN),
        "block_count": lambda: writer.add_block_count(LAYERS),
        "feed_forward_length": lambda: writer.add_feed_forward_length(INNER),
        "head_count": lambda: writer.add_head_count(HEADS),
        "head_count_kv": lambda: writer.add_head_count_kv(KV_HEADS),
        "layer_norm_rms_epsilon": lambda: writer.add_layer_norm_rms_eps(1e-5),
        "freq_base": lambda: writer.add_rope_freq_base(10000.0),
        "dimension_count": lambda: writer.add_rope_dimension_count(HEAD_DIM),
        "tokens": lambda: writer.add_token_list(TOKENS),
        "token_type": lambda: writer.add_token_types([3, 3, 3] + [1] * (VOCAB - 3)),
        "eos_token_id": lambda: writer.add_eos_token_id(2),
    }
    for key, add in standard.items():
        if key not in without:
            add()
    metadata(writer)
    for name, tensor in tensors.items():
        _add_tensor(writer, name, tensor.numpy(), type_of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tensor(
    writer: gguf.GGUFWriter,
    name: str,
    values: np.ndarray,
    type_of: Callable[[str], gguf.GGMLQuantizationType],
) -> None:
    for projection, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS)):
        if projection in name:
            halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    file_name = gguf_name(name)
    kind = type_of(file_name) if values.ndim == 2 else gguf.GGMLQuantizationType.F32
    encoded = gguf.quants.quantize(values, kind)
    writer.add_tensor(file_name, encoded, raw_dtype=kind)


def gguf_name(name: str) -> str:
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if not name.startswith("model.layers."):
        return whole.get(name, name)
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES.get(module, module)}.{kind}"
