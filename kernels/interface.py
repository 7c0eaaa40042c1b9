"""What the forward pass of a decoder asks of its kernels, whoever computes them.

Owns the names, shapes and meaning of the operations, and the few types that pass between them.
There are three implementations: ``kernels.cpu``, C++ whose sums have one order;
``kernels.torch_kernels``, which runs wherever torch does; and ``kernels.triton`` for GPUs. How
weights and caches are laid out is the implementation's business; what it has made, only itself can
read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from chairlift.kernels.quantised import Matrix
from chairlift.kernels.sampler import DeviceSampler, Sampler

__all__ = [
    "FLOAT",
    "Activation",
    "Attention",
    "AttentionRows",
    "DecoderLayer",
    "Experts",
    "GatedMlp",
    "Heads",
    "KVCache",
    "Kernels",
    "Layers",
    "Packed",
    "Part",
    "Ranks",
]


FLOAT = "F32"
"""The kind of a part that is not quantised; its numbers are those of the kernels' ``dtype``."""

Activation = Literal["silu", "gelu_tanh"]
"""Of the gate of an MLP; ``gelu_tanh`` is GELU with tanh in place of the error function."""


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
    """What the attention of a layer looks like; layers that are alike share one.

    Attributes:
        num_heads: query heads; a multiple of ``num_kv_heads``.
        num_kv_heads: heads of K and V.
        head_dim: elements of a head.
        cos: (positions, rotated elements / 2) float32, by which each position is rotated.
        sin: as ``cos``.
        scale: of scores, before anything else; ``head_dim ** -0.5`` in most models.
        window: positions that a token sees, its own included; None for all.
        soft_cap: scores become ``cap × tanh(score / cap)``; None for none.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    cos: Tensor
    sin: Tensor
    scale: float
    window: int | None = None
    soft_cap: float | None = None

    @property
    def width(self) -> int:
        """Elements of a row of queries, keys and values."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class AttentionRows:
    """The rows of one step: sequences one after the other, positions ascending.

    Tensors are int64, and where the kernels compute.

    Attributes:
        positions: (rows,) in their sequences.
        slots: (rows,) in the cache, ``block × block_size + offset``; all different.
        block_tables: (sequences, blocks); entries behind a sequence's end must be valid block
            numbers, and mean nothing.
        context_lens: (sequences,) tokens in the cache, the present rows included.
        query_lens: (sequences,) present rows of each, at least 1.
        block_size: positions of one block.
        most_rows: at least the largest of ``query_lens``, known without asking a GPU.
        most_context: at least the largest of ``context_lens``.
    """

    positions: Tensor
    slots: Tensor
    block_tables: Tensor
    context_lens: Tensor
    query_lens: Tensor
    block_size: int
    most_rows: int
    most_context: int


@dataclass(frozen=True, slots=True)
class GatedMlp:
    """``down(activation(gate) × up)``; ``gate_up`` is the gate's outputs, then those of up."""

    gate_up: Packed
    down: Packed
    activation: Activation


@dataclass(frozen=True, slots=True)
class Experts:
    """Several MLPs, of which each row takes a few.

    Attributes:
        router: (experts, inputs): a row's softmax over its outputs says which.
        experts: all alike.
        per_token: how many a row takes, the likeliest; of equal ones the first.
        normalise: whether the weights of those taken are divided by their sum.
    """

    router: Packed
    experts: tuple[GatedMlp, ...]
    per_token: int
    normalise: bool


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The weights of one layer: attention, then an MLP, each behind a norm and added.

    Attributes:
        query_norm, key_norm: (head_dim,) norms of each head before it is rotated.
        attention_post_norm, mlp_post_norm: (hidden,) norms of what is added.
    """

    attention_norm: Tensor
    qkv: Packed
    attention_out: Packed
    mlp_norm: Tensor
    mlp: GatedMlp | Experts
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    attention_post_norm: Tensor | None = None
    mlp_post_norm: Tensor | None = None


class Ranks(Protocol):
    """Who computes one model together, each with a share of every layer's heads and columns."""

    @property
    def size(self) -> int:
        """How many; of a single one nothing is asked."""
        ...

    @property
    def handle(self) -> int | None:
        """For kernels that call the sum from C++ (``cpu/api.h``), or None."""
        ...

    def sum(self, x: Tensor) -> None:
        """In place: the sum of every rank's ``x``, on each of them the same bits."""
        ...

    def check(self, code: int, /) -> None:
        """Raise what a sum in C++ that returned ``code`` stands for; 0 stands for nothing."""
        ...


class Layers(Protocol):
    """All layers of a decoder, ready to run."""

    def run(self, hidden: Tensor, rows: AttentionRows, caches: Sequence[KVCache]) -> None:
        """One step, in place: hidden states (rows, hidden); caches of each layer."""
        ...


class Attention(Protocol):
    """Attention of one step, the same in every layer with these heads.

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

    Every tensor is on ``device`` and contiguous, and of ``dtype``, save for biases, the weights of
    norms and logits, which are float32, and token ids, which are int64.

    Attributes:
        exact: a row's result is the same, bit for bit, whatever rows stand beside it, however
            its sequence is cut into steps, wherever its blocks lie, and on any number of threads.
        device: where all of it is.
        dtype: of hidden states and weights; whatever it is, sums are of float32 at least.
        encodings: GGUF's names of those in which ``pack`` takes a matrix as it is. Products with
            such a matrix are computed in integers; see ``kernels.reference.quantised_linear``.
        cache_types: of numbers that K and V can be kept as; ``dtype`` is one of them.
    """

    exact: bool
    device: torch.device
    dtype: torch.dtype
    encodings: frozenset[str]
    cache_types: frozenset[torch.dtype]

    @property
    def sampler(self) -> Sampler | DeviceSampler:
        """What makes tokens of logits: of arrays, or where they lie."""
        ...

    def pack(self, *matrices: Matrix, bias: Tensor | None = None) -> Packed:
        """Prepare matrices of the same inputs, one under the other, once.

        They come on the CPU, in float32 or any type of fewer bits.
        """
        ...

    def embed(self, tokens: Tensor, table: Packed, *, out: Tensor) -> None:
        """Rows ``tokens`` (rows,) of the matrix; out (rows, inputs)."""
        ...

    def linear(self, x: Tensor, layer: Packed, *, out: Tensor) -> None:
        """``x weightᵀ + bias``: x (rows, inputs), out (rows, outputs).

        ``out`` may be float32 whatever ``dtype`` is: logits are.
        """
        ...

    def add_linear(self, x: Tensor, layer: Packed, *, out: Tensor) -> None:
        """As ``linear``, but added to what ``out`` holds."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> None:
        """``x / sqrt(mean(x²) + eps) × weight`` over the last dimension of (rows, width)."""
        ...

    def norm_heads(self, qkv: Tensor, heads: Heads, query: Tensor, key: Tensor, eps: float) -> None:
        """``rms_norm`` of each head of the queries and of the keys, in place."""
        ...

    def gated(self, gate_up: Tensor, activation: Activation, *, out: Tensor) -> None:
        """``activation(gate) × up``: gate_up (rows, gate then up), out (rows, gate)."""
        ...

    def soft_cap(self, logits: Tensor, cap: float) -> None:
        """``cap × tanh(logits / cap)``, in place; float32."""
        ...

    def experts(self, x: Tensor, layer: Experts, *, out: Tensor) -> None:
        """The weighted sum of what a row's experts make of it; out as x, (rows, hidden)."""
        ...

    def new_cache(
        self, heads: Heads, num_blocks: int, block_size: int, dtype: torch.dtype
    ) -> KVCache:
        """Zeros of one of ``cache_types``; memory is taken as blocks are first written."""
        ...

    def attention(self, heads: Heads, rows: AttentionRows) -> Attention:
        """Prepare one step's attention."""
        ...

    def layers(
        self, layers: Sequence[DecoderLayer], heads: Sequence[Heads], eps: float, ranks: Ranks
    ) -> Layers:
        """Prepare a decoder, once.

        Args:
            layers: in order.
            heads: of each layer.
            eps: that of its norms.
            ranks: who else has a share of each layer; what a rank adds to the hidden states is
                summed over them first.
        """
        ...
