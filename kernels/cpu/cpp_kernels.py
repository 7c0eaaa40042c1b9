"""The kernels in C++, each with one order of summation.

Owns the way from ``kernels.interface`` to the compiled library, and the layout of the cache. Packed
matrices are ``kernels.cpu.panels``' affair. The number of threads changes no bit of any result.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from chairlift.kernels.cpu.cpp_layers import (
    ACTIVATIONS,
    CppLayers,
    describe_cache,
    describe_shape,
)
from chairlift.kernels.cpu.cpp_sampling import CppSampler
from chairlift.kernels.cpu.library import Library, address
from chairlift.kernels.cpu.memory import Memory
from chairlift.kernels.cpu.panels import (
    ENCODINGS,
    form_of,
    pack_floats,
    pack_quantised,
)
from chairlift.kernels.cpu.tiles import attention_tiles
from chairlift.kernels.interface import (
    FLOAT,
    Activation,
    Attention,
    AttentionRows,
    DecoderLayer,
    Experts,
    GatedMlp,
    Heads,
    KVCache,
    Layers,
    Packed,
    Part,
    Ranks,
)
from chairlift.kernels.plain_experts import mix_experts
from chairlift.kernels.plain_layers import PlainLayers
from chairlift.kernels.quantised import Matrix, Quantised, stack
from chairlift.kernels.sampler import Sampler

__all__ = ["CppKernels"]

_FLOAT_BYTES = 4


class CppKernels:
    """Implements ``kernels.interface.Kernels``."""

    exact = True
    device = torch.device("cpu")
    dtype = torch.float32
    encodings = frozenset(ENCODINGS)
    cache_types = frozenset((torch.float32, torch.float16))

    def __init__(self, library: Library) -> None:
        self.sampler: Sampler = CppSampler(library)
        self._library = library
        self._memory = Memory()

    def pack(self, *matrices: Matrix, bias: Tensor | None = None) -> Packed:
        parts = tuple(self._pack(matrix) for matrix in stack(matrices))
        bias = None if bias is None else bias.float()
        return Packed(parts, bias, matrices[0].shape[1], sum(part.outputs for part in parts))

    def embed(self, tokens: Tensor, table: Packed, *, out: Tensor) -> None:
        if not 0 <= int(tokens.min()) <= int(tokens.max()) < table.outputs:
            raise IndexError(f"a token id is outside 0 … {table.outputs - 1}")
        (part,), rows = table.parts, tokens.shape[0]
        given = (address(tokens, rows, dtype=torch.int64), rows)
        rest = (part.weight.data_ptr(), table.inputs, address(out, rows, table.inputs))
        if part.kind == FLOAT:
            self._library.call("embed", *given, *rest)
        else:
            self._library.call("embed_int8", *given, form_of(part.kind), *rest)

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

    def norm_heads(self, qkv: Tensor, heads: Heads, query: Tensor, key: Tensor, eps: float) -> None:
        rows = len(qkv)
        self._library.call(
            "norm_heads",
            ctypes.byref(describe_shape(heads)),
            address(qkv, rows, heads.width),
            rows,
            address(query, heads.head_dim),
            address(key, heads.head_dim),
            eps,
        )

    def gated(self, gate_up: Tensor, activation: Activation, *, out: Tensor) -> None:
        rows, width = out.shape
        self._library.call(
            "gated",
            address(gate_up, rows, 2 * width),
            rows,
            width,
            ACTIVATIONS[activation],
            address(out, rows, width),
        )

    def soft_cap(self, logits: Tensor, cap: float) -> None:
        self._library.call("soft_cap", address(logits, *logits.shape), logits.numel(), cap)

    def experts(self, x: Tensor, layer: Experts, *, out: Tensor) -> None:
        mix_experts(self, x, layer, out=out, route=partial(_route, self._library))

    def new_cache(
        self, heads: Heads, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> KVCache:
        """Keys as columns, (blocks, heads, head_dim, block_size); values as rows."""
        if dtype not in self.cache_types:
            raise TypeError(f"expected a cache of float32 or float16, found {dtype}")
        shape = num_blocks, heads.num_kv_heads, heads.head_dim, block_size
        size = math.prod(shape)
        words = -(-size * dtype.itemsize // _FLOAT_BYTES)
        keys, values = (self._memory.zeros(words).view(dtype)[:size] for _ in range(2))
        return KVCache(keys.view(shape), values.view(*shape[:2], *shape[:1:-1]))

    def attention(self, heads: Heads, rows: AttentionRows) -> Attention:
        return _CppAttention(self._library, heads, rows, attention_tiles(heads, rows))

    def layers(
        self, layers: Sequence[DecoderLayer], heads: Sequence[Heads], eps: float, ranks: Ranks
    ) -> Layers:
        mlps = [layer.mlp for layer in layers if isinstance(layer.mlp, GatedMlp)]
        if len(mlps) < len(layers) or (ranks.size > 1 and ranks.handle is None):
            return PlainLayers(self, layers, heads, eps, ranks)
        return CppLayers(self._library, layers, heads, eps, ranks)

    def _pack(self, matrix: Matrix) -> Part:
        if isinstance(matrix, Quantised):
            return Part(pack_quantised(matrix, self._memory), matrix.kind, matrix.shape[0])
        return Part(pack_floats(matrix, self._memory), FLOAT, matrix.shape[0])

    def _linear(self, x: Tensor, layer: Packed, out: Tensor, *, adds: bool) -> None:
        rows, stride = x.shape[0], layer.outputs
        given = (address(x, rows, layer.inputs), rows, layer.inputs)
        bias = None if layer.bias is None else address(layer.bias, stride)
        to = address(out, rows, stride)
        for part in layer.parts:
            rest = (part.weight.data_ptr(), bias, part.outputs, adds, to, stride)
            if part.kind == FLOAT:
                self._library.call("linear", *given, *rest)
            else:
                self._library.call("linear_int8", *given, form_of(part.kind), *rest)
            to += _FLOAT_BYTES * part.outputs
            bias = None if bias is None else bias + _FLOAT_BYTES * part.outputs


def _route(
    library: Library, scores: Tensor, per_token: int, *, normalise: bool
) -> tuple[Tensor, Tensor]:
    """See ``kernels.plain_experts.route``."""
    rows, experts = scores.shape
    weights = torch.empty(rows, per_token)
    chosen = torch.empty(rows, per_token, dtype=torch.int64)
    library.call(
        "route",
        address(scores, rows, experts),
        rows,
        experts,
        per_token,
        normalise,
        weights.data_ptr(),
        chosen.data_ptr(),
    )
    return weights, chosen


@dataclass(frozen=True, slots=True)
class _CppAttention:
    """``tiles`` is (count, 4) int64: sequence, first row, rows, position of the first row."""

    library: Library
    heads: Heads
    rows: AttentionRows
    tiles: Tensor

    def store(self, qkv: Tensor, cache: KVCache) -> None:
        rows, half = self.rows.positions.shape[0], self.heads.cos.shape[1]
        self.library.call(
            "rotate_and_store",
            ctypes.byref(describe_shape(self.heads, cache)),
            address(qkv, rows, self.heads.width),
            rows,
            self.heads.cos.data_ptr(),
            self.heads.sin.data_ptr(),
            half,
            address(self.rows.positions, rows, dtype=torch.int64),
            address(self.rows.slots, rows, dtype=torch.int64),
            ctypes.byref(describe_cache(cache)),
        )

    def attend(self, qkv: Tensor, cache: KVCache, *, out: Tensor) -> None:
        rows, tables = self.rows.positions.shape[0], self.rows.block_tables
        self.library.call(
            "attention",
            ctypes.byref(describe_shape(self.heads, cache)),
            address(qkv, rows, self.heads.width),
            ctypes.byref(describe_cache(cache)),
            address(tables, *tables.shape, dtype=torch.int64),
            tables.shape[1],
            self.tiles.data_ptr(),
            self.tiles.shape[0],
            address(out, rows, self.heads.num_heads * self.heads.head_dim),
        )
