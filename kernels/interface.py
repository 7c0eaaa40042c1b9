"""What the forward pass of a decoder asks of its kernels, whoever computes them.

Owns the names, shapes and meaning of the operations, and the few types that pass between them.
There are two implementations: ``kernels.cpu``, C++ whose sums have one order, and
``kernels.torch_kernels``, which runs wherever torch does. How weights and caches are laid out is
the implementation's business; what it has made, only itself can read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from chairlift.kernels.quantised import Matrix
from chairlift.kernels.sampler import Sampler

__all__ = [
    "FLOAT",
    "Attention",
    "AttentionRows",
    "DecoderLayer",
    "Heads",
    "KVCache",
    "Kernels",
    "Layers",
    "Packed",
    "Part",
]


FLOAT = "F32"
"""The kind of a part that is not quantised."""


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbouring outputs of a matrix, in the form that its kernels read.

    Attributes:
        weight: in whatever layout.
        kind: how the weights are encoded: ``FLOAT``, or GGUF's name.
        outputs: how many.
    """

    weight: Tensor
    kind: str
    outputs: int


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix (outputs, inputs), part after part, and its bias (outputs,)."""

    parts: tuple[Part, ...]
    bias: Tensor | None
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True)
class KVCache:
    """K and V of one layer: blocks first, the rest as its kernels like it."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Heads:
    """What one attention layer looks like; all layers of a model look alike.

    Attributes:
        num_heads: query heads; a multiple of ``num_kv_heads``.
        num_kv_heads: heads of K and V.
        head_dim: elements of a head.
        cos: (positions, rotated elements / 2) float32, by which each position is rotated.
        sin: as ``cos``.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    cos: Tensor
    sin: Tensor

    @property
    def width(self) -> int:
        """Elements of a row of queries, keys and values."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """The rows of one step: sequences one after the other, positions ascending. All int64.

    Attributes:
        positions: (rows,) in their sequences.
        slots: (rows,) in the cache, ``block × block_size + offset``; all different.
        block_tables: (sequences, blocks); entries behind a sequence's end must be valid block
            numbers, and mean nothing.
        context_lens: (sequences,) tokens in the cache, the present rows included.
        query_lens: (sequences,) present rows of each, at least 1.
        block_size: positions of one block.
    """

    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    context_lens: Tensor
    query_lens: Tensor
    block_size: int


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The weights of one layer: attention, then a gated MLP, each behind a norm and added."""

    attention_norm: Tensor
    qkv: Packed
    attention_out: Packed
    mlp_norm: Tensor
    gate_up: Packed
    down: Packed


class Layers(Protocol):
    """All layers of a decoder, ready to run."""

    def run(self, hidden: Tensor, rows: AttentionRows, caches: Sequence[KVCache]) -> None:
        """One step, in place: hidden states (rows, hidden); caches of each layer."""
        ...


class Attention(Protocol):
    """Attention of one step, the same in every layer.

    ``qkv`` is (rows, ``Heads.width``): each row's queries, keys and values, head after head.
    """

    def store(self, qkv: Tensor, cache: KVCache) -> None:
        """Rotate queries and keys in place, and write keys and values to the cache."""
        ...

    def attend(self, qkv: Tensor, cache: KVCache, *, out: Tensor) -> None:
        """Causal attention of the stored rows' queries; out (rows, num_heads × head_dim)."""
        ...


class Kernels(Protocol):
    """Each writes to ``out``, which a caller can use again in every layer.

    Every tensor is float32, on the CPU and contiguous; token ids are int64.

    Attributes:
        exact: a row's result is the same, bit for bit, whatever rows stand beside it, however
            its sequence is cut into steps, wherever its blocks lie, and on any number of threads.
        encodings: GGUF's names of those in which ``pack`` takes a matrix as it is. Products with
            such a matrix are computed in integers; see ``kernels.reference.quantised_linear``.
        cache_types: of numbers that K and V can be kept as; float32 is one of them.
        sampler: what makes tokens of logits.
    """

    exact: bool
    encodings: frozenset[str]
    cache_types: frozenset[torch.dtype]
    sampler: Sampler

    def pack(self, *matrices: Matrix, bias: Tensor | None = None) -> Packed:
        """Prepare matrices of the same inputs, one under the other, once."""
        ...

    def embed(self, tokens: Tensor, table: Packed, *, out: Tensor) -> None:
        """Rows ``tokens`` (rows,) of the matrix; out (rows, inputs)."""
        ...

    def linear(self, x: Tensor, layer: Packed, *, out: Tensor) -> None:
        """``x weightᵀ + bias``: x (rows, inputs), out (rows, outputs)."""
        ...

    def add_linear(self, x: Tensor, layer: Packed, *, out: Tensor) -> None:
        """As ``linear``, but added to what ``out`` holds."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> None:
        """``x / sqrt(mean(x²) + eps) × weight`` over the last dimension of (rows, width)."""
        ...

    def silu_mul(self, gate_up: Tensor, *, out: Tensor) -> None:
        """``silu(gate) × up``: gate_up (rows, gate then up), out (rows, gate)."""
        ...

    def new_cache(
        self, heads: Heads, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> KVCache:
        """Zeros of one of ``cache_types``; memory is taken as blocks are first written."""
        ...

    def attention(self, heads: Heads, rows: AttentionRows) -> Attention:
        """Prepare one step's attention."""
        ...

    def layers(self, layers: Sequence[DecoderLayer], heads: Heads, eps: float) -> Layers:
        """Prepare a decoder, once; ``eps`` is that of its norms."""
        ...
