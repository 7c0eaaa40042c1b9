"""Weights from a GGUF file: names, dequantisation, and the order of rotated rows.

Owns the difference between llama.cpp's conventions and Hugging Face's. The encodings themselves
are the ``gguf`` package's; a matrix can also be handed on as it is, for kernels that read it so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Set

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from chairlift.cluster.errors import ModelError
from chairlift.cluster.gguf_file import GgufFile, GgufTensor
from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.quantised import Matrix, Quantised

__all__ = ["GgufWeights"]

_PIECE = 1 << 16
"""Elements that are decoded at a time: the intermediate arrays stay in the processor's cache."""

_MATRIX = 2
"""Dimensions."""

_WHOLE_MODEL: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "rope_freqs",
}
_LAYER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufWeights:
    """The tensors of a GGUF file of the architecture ``llama``, by Hugging Face's names."""

    def __init__(self, spec: ModelSpec) -> None:
        self._path = spec.path
        self._tensors = {
            _canonical(name): tensor for name, tensor in GgufFile.open(spec.path).tensors.items()
        }
        self._rotated_heads = {"q_proj": spec.num_heads, "k_proj": spec.num_kv_heads}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def encodings(self) -> frozenset[str]:
        return frozenset(
            tensor.type_name for tensor in self._tensors.values() if len(tensor.shape) == _MATRIX
        )

    def read(self, name: str, keep: Set[str] = frozenset()) -> Matrix:
        tensor = self._tensors[name]
        if tensor.type_name in keep and len(tensor.shape) == _MATRIX:
            # A copy: the file may be replaced while the model runs.
            blocks = torch.from_numpy(np.array(tensor.raw))
            return Quantised(tensor.type_name, self._in_order(name, blocks), tensor.shape[1])
        try:
            values = torch.from_numpy(_decode(tensor))
        except NotImplementedError:
            raise ModelError(
                f"{self._path}: the tensor {name} has the type {tensor.type_name},"
                " which cannot be decoded; choose another quantisation of this model"
            ) from None
        return self._in_order(name, values)

    def _in_order(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        for projection, heads in self._rotated_heads.items():
            if f".{projection}." in name:
                return _halves_apart(rows, heads)
        return rows


def _canonical(name: str) -> str:
    """Hugging Face's name; one that is unknown within a layer keeps its end.

    ``blk.3.attn_q.weight`` becomes ``model.layers.3.self_attn.q_proj.weight``.
    """
    match = re.fullmatch(r"blk\.(\d+)\.(.+)\.(\w+)", name)
    if match is None:
        return _WHOLE_MODEL.get(name, name)
    layer, module, kind = match.groups()
    return f"model.layers.{layer}.{_LAYER.get(module, module)}.{kind}"


def _decode(tensor: GgufTensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """To float32, in memory of its own; NotImplementedError for an encoding without a decoder."""
    kind = GGMLQuantizationType[tensor.type_name]
    block, block_bytes = GGML_QUANT_SIZES[kind]
    raw = tensor.raw.reshape(-1)
    values = np.empty(math.prod(tensor.shape), np.float32)
    step = _PIECE // block * block_bytes
    for start in range(0, raw.size, step):
        piece = dequantize(raw[start : start + step], kind)
        first = start // block_bytes * block
        values[first : first + piece.size] = piece
    return values.reshape(tensor.shape)


def _halves_apart(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the order in which llama.cpp's converter stores rows that are rotated in pairs.

    Rows of one head, with d = head_dim / 2, where a pair is (row i, row i + d) of the result:

        file      0  d  1  d+1  2  d+2  …        the two of a pair are neighbours
        result    0  1  2  …    d  d+1  d+2 …    the two of a pair are half a head apart
    """
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)
