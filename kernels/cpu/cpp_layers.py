"""All layers of a decoder in one call of the compiled library.

Owns the descriptions of layers, caches and steps that ``api.h`` draws, and the checks at the
border. The numbers are those of the single kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from chairlift.kernels.cpu import structs
from chairlift.kernels.cpu.library import Library, address
from chairlift.kernels.cpu.panels import form_of
from chairlift.kernels.cpu.tiles import attention_tiles
from chairlift.kernels.interface import AttentionRows, DecoderLayer, Heads, KVCache, Packed

__all__ = ["CppLayers"]


class CppLayers:
    """Implements ``kernels.interface.Layers``."""

    def __init__(
        self, library: Library, layers: Sequence[DecoderLayer], heads: Heads, eps: float
    ) -> None:
        """Describe the layers, once."""
        self._library = library
        self._heads = heads
        self._eps = eps
        self._layers = layers  # what the descriptions point at
        self._parts: list[Any] = []
        self._described = (structs.Layer * len(layers))(*map(self._describe, layers))
        self._angles = structs.Angles(
            heads.cos.data_ptr(), heads.sin.data_ptr(), heads.cos.shape[1]
        )

    def run(self, hidden: Tensor, rows: AttentionRows, caches: Sequence[KVCache]) -> None:
        first, heads, count = self._layers[0], self._heads, len(hidden)
        positions, tables = rows.positions, rows.block_tables
        tiles = attention_tiles(heads, rows)
        between = [
            torch.empty(count, width)
            for width in (
                first.qkv.inputs,
                first.qkv.outputs,
                first.attention_out.inputs,
                first.gate_up.outputs,
                first.down.inputs,
            )
        ]
        shape = structs.Shape(heads.num_heads, heads.num_kv_heads, heads.head_dim, rows.block_size)
        places = [structs.Cache(each.keys.data_ptr(), each.values.data_ptr()) for each in caches]
        described = structs.Rows(
            count,
            address(positions, count, dtype=torch.int64),
            address(rows.slots, count, dtype=torch.int64),
            address(tables, *tables.shape, dtype=torch.int64),
            tables.shape[1],
            tiles.data_ptr(),
            len(tiles),
        )
        self._library.call(
            "layers",
            ctypes.byref(shape),
            ctypes.byref(self._angles),
            self._eps,
            self._described,
            (structs.Cache * len(self._layers))(*places),
            len(self._layers),
            ctypes.byref(described),
            ctypes.byref(structs.Between(*(tensor.data_ptr() for tensor in between))),
            address(hidden, count, first.qkv.inputs),
        )

    def _describe(self, layer: DecoderLayer) -> structs.Layer:
        width = layer.qkv.inputs
        return structs.Layer(
            address(layer.attention_norm, width),
            address(layer.mlp_norm, width),
            *map(self._matrix, (layer.qkv, layer.attention_out, layer.gate_up, layer.down)),
        )

    def _matrix(self, packed: Packed) -> structs.Matrix:
        parts = (structs.Part * len(packed.parts))(
            *(
                structs.Part(part.weight.data_ptr(), form_of(part.kind), part.outputs)
                for part in packed.parts
            )
        )
        self._parts.append(parts)
        bias = None if packed.bias is None else address(packed.bias, packed.outputs)
        return structs.Matrix(
            ctypes.addressof(parts), len(parts), bias, packed.inputs, packed.outputs
        )
