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

__all__ = ["CppLayers", "describe_cache", "describe_shape"]


def describe_shape(heads: Heads, block_size: int, cache: KVCache) -> structs.Shape:
    """What attention needs to know of one layer, and so of each."""
    half = cache.keys.dtype == torch.float16
    return structs.Shape(heads.num_heads, heads.num_kv_heads, heads.head_dim, block_size, half)


def describe_cache(cache: KVCache) -> structs.Cache:
    """Where it lies."""
    return structs.Cache(cache.keys.data_ptr(), cache.values.data_ptr())


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
        # What stays from step to step: the caches, if they are the same, and room for what passes
        # between the kernels, which grows with the largest step.
        self._caches: Sequence[KVCache] = ()
        self._places: Any = None
        self._room = self._take_room(0)
        self._between = structs.Between()

    def run(self, hidden: Tensor, rows: AttentionRows, caches: Sequence[KVCache]) -> None:
        heads, count = self._heads, len(hidden)
        positions, tables = rows.positions, rows.block_tables
        tiles = attention_tiles(heads, rows)
        if caches is not self._caches:
            self._caches = caches
            self._places = (structs.Cache * len(caches))(*map(describe_cache, caches))
        if count > self._room[0].shape[0]:
            self._room = self._take_room(count)
            self._between = structs.Between(*(tensor.data_ptr() for tensor in self._room))
        shape = describe_shape(heads, rows.block_size, caches[0])
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
            self._places,
            len(self._layers),
            ctypes.byref(described),
            ctypes.byref(self._between),
            address(hidden, count, self._layers[0].qkv.inputs),
        )

    def _take_room(self, rows: int) -> list[Tensor]:
        first = self._layers[0]
        widths = (
            first.qkv.inputs,
            first.qkv.outputs,
            first.attention_out.inputs,
            first.gate_up.outputs,
            first.down.inputs,
        )
        return [torch.empty(rows, width) for width in widths]

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
