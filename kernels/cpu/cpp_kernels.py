"""The kernels in C++, each with one order of summation.

Owns the way from ``kernels.interface`` to the compiled library: the layout of packed matrices and
of the cache, and how a step's attention is cut into tiles. Neither the cut nor the number of
threads changes a bit of any result.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chairlift.kernels.cpu.library import Library, Shape, address
from chairlift.kernels.interface import Attention, AttentionRows, Heads, KVCache, Packed

__all__ = ["CppKernels"]

_LANES = 16  # outputs of a panel; as in vec.h
_ALIGNMENT = 64
# (position, head) pairs that read K and V together: what they gather should stay in the cache.
_TILE_PAIRS = 48


class CppKernels:
    """Implements ``kernels.interface.Kernels``."""

    exact = True

    def __init__(self, library: Library) -> None:
        self._library = library

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Packed:
        """Panels of 16 outputs, the last one filled up with zeros: (panels, inputs, 16)."""
        outputs, inputs = weight.shape
        panels = -(-outputs // _LANES)
        packed = _zeros(panels, inputs, _LANES)
        missing = panels * _LANES - outputs
        padded = F.pad(weight, (0, 0, 0, missing)) if missing else weight
        packed.copy_(padded.view(panels, _LANES, inputs).transpose(1, 2))
        return Packed(packed, bias, inputs, outputs)

    def embed(self, tokens: Tensor, table: Packed, *, out: Tensor) -> None:
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < table.outputs:
            raise IndexError(f"a token id is outside 0 … {table.outputs - 1}")
        rows = tokens.shape[0]
        self._library.call(
            "embed",
            address(tokens, rows, dtype=torch.int64),
            rows,
            table.weight.data_ptr(),
            table.inputs,
            address(out, rows, table.inputs),
        )

    def linear(self, x: Tensor, layer: Packed, *, out: Tensor) -> None:
        self._linear(x, layer, out, adds=False)

    def add_linear(self, x: Tensor, layer: Packed, *, out: Tensor) -> None:
        self._linear(x, layer, out, adds=True)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> None:
        rows, width = x.shape
        self._library.call(
            "rms_norm",
            address(x, rows, width),
            rows,
            width,
            address(weight, width),
            eps,
            address(out, rows, width),
        )

    def silu_mul(self, gate_up: Tensor, *, out: Tensor) -> None:
        rows, width = out.shape
        self._library.call(
            "silu_mul",
            address(gate_up, rows, 2 * width),
            rows,
            width,
            address(out, rows, width),
        )

    def new_cache(self, heads: Heads, num_blocks: int, block_size: int) -> KVCache:
        """Keys as columns, (blocks, heads, head_dim, block_size); values as rows."""
        return KVCache(
            keys=_zeros(num_blocks, heads.num_kv_heads, heads.head_dim, block_size),
            values=_zeros(num_blocks, heads.num_kv_heads, block_size, heads.head_dim),
        )

    def attention(self, heads: Heads, rows: AttentionRows) -> Attention:
        if int(rows.positions.max()) >= len(heads.cos):
            raise IndexError(f"a position is beyond the last, {len(heads.cos) - 1}")
        group = heads.num_heads // heads.num_kv_heads
        shape = Shape(heads.num_heads, heads.num_kv_heads, heads.head_dim, rows.block_size)
        tiles = _tiles(rows, max(1, _TILE_PAIRS // group))
        return _CppAttention(self._library, heads, rows, shape, tiles)

    def _linear(self, x: Tensor, layer: Packed, out: Tensor, *, adds: bool) -> None:
        rows = x.shape[0]
        self._library.call(
            "linear",
            address(x, rows, layer.inputs),
            rows,
            layer.inputs,
            layer.weight.data_ptr(),
            None if layer.bias is None else address(layer.bias, layer.outputs),
            layer.outputs,
            adds,
            address(out, rows, layer.outputs),
        )


@dataclass(frozen=True, slots=True)
class _CppAttention:
    """``tiles`` is (count, 4) int64: sequence, first row, rows, position of the first row."""

    library: Library
    heads: Heads
    rows: AttentionRows
    shape: Shape
    tiles: Tensor

    def store(self, qkv: Tensor, cache: KVCache) -> None:
        rows, half = self.rows.positions.shape[0], self.heads.cos.shape[1]
        self.library.call(
            "rotate_and_store",
            ctypes.byref(self.shape),
            address(qkv, rows, self.heads.width),
            rows,
            self.heads.cos.data_ptr(),
            self.heads.sin.data_ptr(),
            half,
            address(self.rows.positions, rows, dtype=torch.int64),
            address(self.rows.slots, rows, dtype=torch.int64),
            cache.keys.data_ptr(),
            cache.values.data_ptr(),
        )

    def attend(self, qkv: Tensor, cache: KVCache, *, out: Tensor) -> None:
        rows, tables = self.rows.positions.shape[0], self.rows.block_tables
        self.library.call(
            "attention",
            ctypes.byref(self.shape),
            address(qkv, rows, self.heads.width),
            cache.keys.data_ptr(),
            cache.values.data_ptr(),
            address(tables, *tables.shape, dtype=torch.int64),
            tables.shape[1],
            self.tiles.data_ptr(),
            self.tiles.shape[0],
            address(out, rows, self.heads.num_heads * self.heads.head_dim),
        )


def _tiles(rows: AttentionRows, size: int) -> Tensor:
    """Cut each sequence's rows into tiles of at most ``size``; those with most work come first."""
    counts, contexts = rows.query_lens.numpy(), rows.context_lens.numpy()
    pieces = -(-counts // size)
    sequence = np.repeat(np.arange(len(counts)), pieces)
    within = size * (np.arange(len(sequence)) - np.repeat(np.cumsum(pieces) - pieces, pieces))
    first = np.repeat(np.cumsum(counts) - counts, pieces) + within
    length = np.minimum(size, counts[sequence] - within)
    position = (contexts - counts)[sequence] + within
    tiles = np.stack((sequence, first, length, position), axis=1)
    work = length * (position + length)
    return torch.from_numpy(tiles[np.argsort(-work, kind="stable")])


def _zeros(*shape: int) -> Tensor:
    """Float32 zeros at the start of a cache line, in memory that is taken when it is written."""
    size = int(np.prod(shape))
    memory = np.zeros(size + _ALIGNMENT // 4, np.float32)
    skip = -memory.ctypes.data % _ALIGNMENT // 4
    return torch.from_numpy(memory[skip : skip + size]).view(shape)
