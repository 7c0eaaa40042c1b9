"""Weights from a GGUF file: names, dequantisation, and the order of rotated rows.

Owns the difference between llama.cpp's conventions and Hugging Face's. The encodings themselves
are the ``gguf`` package's; a matrix can also be handed on as it is, for kernels that read it so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from chairlift.cluster.errors import ModelError
from chairlift.cluster.families import gguf_pairs_adjacent
from chairlift.cluster.gguf_file import GgufFile, GgufTensor
from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.quantised import Matrix, Quantised
from chairlift.workers.shards import Cut

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
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "attention_post_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "mlp_post_norm",
}


class GgufWeights:
    """The tensors of a GGUF file, by canonical names."""

    def __init__(self, spec: ModelSpec) -> None:
        self._path = spec.path
        self._tensors = {
            _canonical(name): tensor for name, tensor in GgufFile.open(spec.path).tensors.items()
        }
        self._head_dim = spec.head_dim
        self._pairs_adjacent = gguf_pairs_adjacent(spec)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def encodings(self) -> frozenset[str]:
        return frozenset(
            tensor.type_name for tensor in self._tensors.values() if len(tensor.shape) == _MATRIX
        )

    def read(self, name: str, cut: Cut | None = None, keep: Set[str] = frozenset()) -> Matrix:
        tensor = self._tensors[name]
        piece = _Piece.of(tensor, cut)
        kept = tensor.type_name in keep and len(tensor.shape) == _MATRIX
        if kept and piece.is_whole_blocks:
            # A copy: the file may be replaced while the model runs.
            blocks = torch.from_numpy(np.array(piece.raw))
            return Quantised(tensor.type_name, self._in_order(name, blocks), piece.columns)
        try:
            values = torch.from_numpy(piece.decode())
        except NotImplementedError:
            raise ModelError(
                f"{self._path}: the tensor {name} has the type {tensor.type_name},"
                " which cannot be decoded; choose another quantisation of this model"
            ) from None
        return self._in_order(name, values)

    def _in_order(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """In the order of Hugging Face; ``rows`` are those of whole heads."""
        if self._pairs_adjacent and re.search(r"\.[qk]_proj\.", name):
            return _halves_apart(rows, len(rows) // self._head_dim)
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


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a tensor, and of a matrix some columns: whole blocks, and maybe some more.

    Attributes:
        kind: of the encoding.
        raw: (rows, bytes) of a matrix, or (bytes,); read from the file when they are touched.
        skip: decoded columns before the first that is meant.
        columns: that are meant.
    """

    kind: GGMLQuantizationType
    raw: NDArray[np.uint8]
    skip: int
    columns: int

    @classmethod
    def of(cls, tensor: GgufTensor, cut: Cut | None) -> _Piece:
        kind = GGMLQuantizationType[tensor.type_name]
        block, block_bytes = GGML_QUANT_SIZES[kind]
        raw, columns = tensor.raw, tensor.shape[-1]
        if cut is None:
            return cls(kind, raw, 0, columns)
        if cut.axis == 1:
            first, last = cut.start // block, -(-cut.stop // block)
            raw = raw[:, first * block_bytes : last * block_bytes]
            return cls(kind, raw, cut.start - first * block, cut.stop - cut.start)
        if len(tensor.shape) == _MATRIX:
            return cls(kind, raw[cut.start : cut.stop], 0, columns)
        # A vector that is cut is a bias, and these are not quantised.
        raw = raw.reshape(-1)[cut.start * block_bytes : cut.stop * block_bytes]
        return cls(kind, raw, 0, cut.stop - cut.start)

    @property
    def is_whole_blocks(self) -> bool:
        return self._decoded_columns == self.columns

    @property
    def _decoded_columns(self) -> int:
        block, block_bytes = GGML_QUANT_SIZES[self.kind]
        return int(self.raw.shape[-1]) // block_bytes * block

    def decode(self) -> NDArray[np.float32]:
        """To float32, in memory of its own; NotImplementedError without a decoder."""
        block, block_bytes = GGML_QUANT_SIZES[self.kind]
        raw = self.raw.reshape(-1)
        values = np.empty(raw.size // block_bytes * block, np.float32)
        step = _PIECE // block * block_bytes
        for start in range(0, raw.size, step):
            piece = dequantize(raw[start : start + step], self.kind)
            first = start // block_bytes * block
            values[first : first + piece.size] = piece
        values = values.reshape(*self.raw.shape[:-1], self._decoded_columns)
        if self.is_whole_blocks:
            return values
        return np.ascontiguousarray(values[..., self.skip : self.skip + self.columns])


def _halves_apart(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the order in which llama.cpp's converter stores rows that are rotated in pairs.

    Rows of one head, with d = head_dim / 2, where a pair is (row i, row i + d) of the result:

        file      0  d  1  d+1  2  d+2  …        the two of a pair are neighbours
        result    0  1  2  …    d  d+1  d+2 …    the two of a pair are half a head apart
    """
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)
