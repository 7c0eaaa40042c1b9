"""All layers of a decoder in one call of the compiled library.

Owns the descriptions of layers, caches and steps that ``api.h`` draws, and the checks at the
border. The numbers are those of the single kernels.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from chairlift.kernels.cpu import structs
from chairlift.kernels.cpu.library import Library, address
from chairlift.kernels.cpu.panels import form_of
from chairlift.kernels.cpu.tiles import attention_tiles
from chairlift.kernels.interface import (
    Activation,
    AttentionRows,
    DecoderLayer,
    GatedMlp,
    Heads,
    KVCache,
    Packed,
    Ranks,
)

__all__ = ["ACTIVATIONS", "CppLayers", "describe_cache", "describe_shape"]

ACTIVATIONS: Mapping[Activation, int] = {"silu": 0, "gelu_tanh": 1}
"""Their numbers in C++."""


def describe_shape(heads: Heads, cache: KVCache | None = None) -> structs.Shape:
    """What attention needs to know of a layer; without a cache, what other kernels do."""
    block_size, half = 0, False
    if cache is not None:
        block_size, half = cache.keys.shape[-1], cache.keys.dtype == torch.float16
    return structs.Shape(
        *(heads.num_heads, heads.num_kv_heads, heads.head_dim, block_size, half),
        *(heads.window or 0, heads.scale, heads.soft_cap or 0.0),
    )


def describe_cache(cache: KVCache) -> structs.Cache:
    """Where it lies."""
    return structs.Cache(cache.keys.data_ptr(), cache.values.data_ptr())


class CppLayers:
    """Implements ``kernels.interface.Layers``, for layers without experts."""

    def __init__(
        self,
        library: Library,
        layers: Sequence[DecoderLayer],
        heads: Sequence[Heads],
        eps: float,
        ranks: Ranks,
    ) -> None:
        """Describe the layers, once."""
        self._library = library
        self._eps = eps
        self._ranks = ranks
        self._layers = layers  # what the descriptions point at
        self._heads = list({id(each): each for each in heads}.values())
        self._parts: list[Any] = []
        number = {id(each): index for index, each in enumerate(self._heads)}
        self._described = (structs.Layer * len(layers))(
            *(
                self._describe(layer, number[id(each)])
                for layer, each in zip(layers, heads, strict=True)
            )
        )
        # What stays from step to step: the caches, if they are the same, and room for what passes
        # between the kernels, which grows with the largest step.
        self._caches: Sequence[KVCache] = ()
        self._places: Any = None
        self._room = self._take_room(0)
        self._between = structs.Between()

    def run(self, hidden: Tensor, rows: AttentionRows, caches: Sequence[KVCache]) -> None:
        count, positions, tables = len(hidden), rows.positions, rows.block_tables
        tiles = [attention_tiles(heads, rows) for heads in self._heads]
        if caches is not self._caches:
            self._caches = caches
            self._places = (structs.Cache * len(caches))(*map(describe_cache, caches))
        if count > self._room[0].shape[0]:
            self._room = self._take_room(count)
            self._between = structs.Between(*(tensor.data_ptr() for tensor in self._room))
        heads = (structs.Heads * len(tiles))(
            *(
                structs.Heads(
                    describe_shape(each, caches[0]),
                    structs.Angles(each.cos.data_ptr(), each.sin.data_ptr(), each.cos.shape[1]),
                    cut.data_ptr(),
                    len(cut),
                )
                for each, cut in zip(self._heads, tiles, strict=True)
            )
        )
        described = structs.Rows(
            count,
            address(positions, count, dtype=torch.int64),
            address(rows.slots, count, dtype=torch.int64),
            address(tables, *tables.shape, dtype=torch.int64),
            tables.shape[1],
        )
        code = self._library.call(
            "layers",
            self._ranks.handle if self._ranks.size > 1 else None,
            heads,
            self._eps,
            self._described,
            self._places,
            len(self._layers),
            ctypes.byref(described),
            ctypes.byref(self._between),
            address(hidden, count, self._layers[0].qkv.inputs),
        )
        if code:
            self._ranks.check(code)

    def _take_room(self, rows: int) -> list[Tensor]:
        first = self._layers[0]
        mlp = _gated(first)
        widths = [
            first.qkv.inputs,
            first.qkv.outputs,
            first.attention_out.inputs,
            mlp.gate_up.outputs,
            mlp.down.inputs,
        ]
        if self._ranks.size > 1 or any(
            norm is not None
            for layer in self._layers
            for norm in (layer.attention_post_norm, layer.mlp_post_norm)
        ):
            widths.append(first.qkv.inputs)
        return [torch.empty(rows, width) for width in widths]

    def _describe(self, layer: DecoderLayer, heads: int) -> structs.Layer:
        width, mlp = layer.qkv.inputs, _gated(layer)
        head_dim = self._heads[heads].head_dim

        def norm(weight: Tensor | None, size: int) -> int | None:
            return None if weight is None else address(weight, size)

        return structs.Layer(
            *(norm(layer.attention_norm, width), norm(layer.mlp_norm, width)),
            *(norm(layer.query_norm, head_dim), norm(layer.key_norm, head_dim)),
            *(norm(layer.attention_post_norm, width), norm(layer.mlp_post_norm, width)),
            *map(self._matrix, (layer.qkv, layer.attention_out, mlp.gate_up, mlp.down)),
            *(ACTIVATIONS[mlp.activation], heads),
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


def _gated(layer: DecoderLayer) -> GatedMlp:
    if not isinstance(layer.mlp, GatedMlp):
        raise TypeError("layers with experts are computed by single kernels")
    return layer.mlp
