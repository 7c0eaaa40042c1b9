"""The packages in which FlashAttention comes, and how each wants to be called.

Owns what differs between them: where a package is imported from, which GPUs and blocks it takes,
the names of its parameters, and what makes its results depend on the batch. Imports none of them
(``kernels.flash`` does).

All of them split long contexts along the keys, by rules that look at the whole batch. A call that
must be exact forbids that, each package in its own way:

- FlashAttention 2 splits only where every sequence has a single row, which it is never told;
- FlashAttention 3 can be told the number of splits;
- FlashAttention 4 can too, but also picks tiles by the longest query and context of the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

__all__ = ["PACKAGES", "Call", "FlashRows", "Needs", "Package", "Scoring"]

_DTYPES = (torch.float16, torch.bfloat16)
_FA3_BLOCK = 64
"""Blocks below this size are too small for FlashAttention 3 to load whole; see ``_fa3_inexact``."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """How a layer turns products of queries and keys into scores.

    Attributes:
        scale: by which products are multiplied.
        window: positions that a query sees, its own included; None for all up to its own.
        soft_cap: scores become ``soft_cap × tanh(score / soft_cap)``; None for no cap.
    """

    scale: float
    window: int | None = None
    soft_cap: float | None = None


@dataclass(frozen=True, slots=True)
class Needs:
    """What a model and its service ask of attention.

    Attributes:
        num_heads: query heads; a multiple of ``num_kv_heads``.
        num_kv_heads: heads of K and V.
        head_dim: elements of a head.
        dtype: of queries, keys and values alike.
        block_size: positions of one block of the cache.
        scorings: those of the model's layers, each once.
        exact: a row's bits must not depend on the batch.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    block_size: int
    scorings: tuple[Scoring, ...]
    exact: bool


@dataclass(frozen=True, slots=True)
class FlashRows:
    """The rows of one step: sequences one after the other. Tensors are int32, on the GPU.

    Attributes:
        query_starts: (sequences + 1,) where each sequence's rows start, and where the last end.
        context_lens: (sequences,) tokens in the cache, the present rows included.
        context_starts: (sequences + 1,) running sum of ``context_lens``, from 0.
        block_tables: (sequences, blocks); entries behind a sequence's end mean nothing.
        max_query: most rows of a sequence, or more.
        max_context: longest of ``context_lens``, or more.
    """

    query_starts: Tensor
    context_lens: Tensor
    context_starts: Tensor
    block_tables: Tensor
    max_query: int
    max_context: int


@dataclass(frozen=True, slots=True)
class Call:
    """One layer's attention; see ``kernels.flash.Flash.attend``."""

    query: Tensor
    keys: Tensor
    values: Tensor
    rows: FlashRows
    scoring: Scoring
    out: Tensor
    exact: bool

    @property
    def max_query(self) -> int:
        """With 1, packages take another way, whose sums have another order."""
        return max(2, self.rows.max_query) if self.exact else self.rows.max_query

    @property
    def soft_cap(self) -> dict[str, float]:
        """Only where there is one: older packages know none."""
        cap = self.scoring.soft_cap
        return {} if cap is None else {"softcap": cap}

    def window(self, everything: int | None) -> tuple[int | None, int | None]:
        """Positions to the left and right of its own that a query sees."""
        window = self.scoring.window
        return (everything, everything) if window is None else (window - 1, 0)


@dataclass(frozen=True, slots=True)
class Package:
    """One candidate.

    Attributes:
        name: for people.
        distribution: as installed, where versions and pins are looked up.
        module: what to import.
        function: its name there.
        arguments: a call in the package's words.
        majors: compute capabilities that it runs on, by their first number.
        block_multiple: block sizes must be multiples of this.
        inexact: why a row's bits would depend on the batch; None when they don't.
    """

    name: str
    distribution: str
    module: str
    function: str
    arguments: Callable[[Call], dict[str, Any]]
    majors: frozenset[int]
    block_multiple: int
    inexact: Callable[[Needs], str | None]

    def misfit(self, needs: Needs, capability: tuple[int, int]) -> str | None:
        """What speaks against it on such a GPU; None when nothing does."""
        if capability[0] not in self.majors:
            known = ", ".join(f"{major}.x" for major in sorted(self.majors))
            gpu = ".".join(map(str, capability))
            return f"it runs on compute capability {known}, and this GPU has {gpu}"
        if needs.dtype not in _DTYPES:
            return f"it computes in float16 and bfloat16, not in {str(needs.dtype)[6:]}"
        if needs.head_dim % 8 or needs.head_dim > 256:
            return f"it takes heads of a multiple of 8 up to 256, not of {needs.head_dim}"
        if needs.block_size % self.block_multiple:
            return (
                f"it takes blocks of a multiple of {self.block_multiple} positions, not of "
                f"{needs.block_size}"
            )
        return self.inexact(needs) if needs.exact else None


def _fa2(call: Call) -> dict[str, Any]:
    return {
        "q": call.query,
        "k": call.keys,
        "v": call.values,
        "cu_seqlens_q": call.rows.query_starts,
        "cu_seqlens_k": call.rows.context_starts,
        "max_seqlen_q": call.max_query,
        "max_seqlen_k": call.rows.max_context,
        "softmax_scale": call.scoring.scale,
        "causal": True,
        "window_size": call.window(-1),
        "block_table": call.rows.block_tables,
        **call.soft_cap,
    }


def _fa2_out(call: Call) -> dict[str, Any]:
    return _fa2(call) | {"out": call.out}


def _vllm(version: int, call: Call) -> dict[str, Any]:
    arguments = _fa2_out(call) | {"seqused_k": call.rows.context_lens, "fa_version": version}
    del arguments["cu_seqlens_k"]
    return arguments | ({"num_splits": 1} if call.exact else {})


def _fa3(call: Call) -> dict[str, Any]:
    return {
        "q": call.query,
        "k_cache": call.keys,
        "v_cache": call.values,
        "cache_seqlens": call.rows.context_lens,
        "page_table": call.rows.block_tables,
        "cu_seqlens_q": call.rows.query_starts,
        "max_seqlen_q": call.max_query,
        "softmax_scale": call.scoring.scale,
        "causal": True,
        "window_size": call.window(-1),
        "num_splits": 1 if call.exact else 0,
        **call.soft_cap,
    }


def _fa4(call: Call) -> dict[str, Any]:
    return {
        "q": call.query,
        "k": call.keys,
        "v": call.values,
        "cu_seqlens_q": call.rows.query_starts,
        "max_seqlen_q": call.max_query,
        "max_seqlen_k": call.rows.max_context,
        "seqused_k": call.rows.context_lens,
        "page_table": call.rows.block_tables,
        "softmax_scale": call.scoring.scale,
        "causal": True,
        "window_size": call.window(None),
        "num_splits": 1,
        **call.soft_cap,
    }


def _never(needs: Needs) -> str | None:
    return None


def _fa3_inexact(needs: Needs) -> str | None:
    if any(scoring.window is not None for scoring in needs.scorings):
        return "with a sliding window its tiles follow from the longest context of the batch"
    if needs.block_size >= _FA3_BLOCK:
        return (
            f"with blocks of {_FA3_BLOCK} positions or more its tiles follow from the longest "
            "query of the batch"
        )
    return None


def _fa4_inexact(needs: Needs) -> str | None:
    return "its tiles follow from the longest query and context of the batch"


PACKAGES = (
    Package(
        "FlashAttention 3",
        "flash-attn-3",
        "flash_attn_interface",
        "flash_attn_with_kvcache",
        _fa3,
        frozenset({9}),
        1,
        _fa3_inexact,
    ),
    Package(
        "FlashAttention 4",
        "flash-attn-4",
        "flash_attn.cute",
        "flash_attn_varlen_func",
        _fa4,
        frozenset({9, 10, 11}),
        1,
        _fa4_inexact,
    ),
    Package(
        "FlashAttention 3 of vLLM",
        "vllm",
        "vllm.vllm_flash_attn",
        "flash_attn_varlen_func",
        lambda call: _vllm(3, call),
        frozenset({9}),
        1,
        _fa3_inexact,
    ),
    Package(
        "FlashAttention 2 of vLLM",
        "vllm",
        "vllm.vllm_flash_attn",
        "flash_attn_varlen_func",
        lambda call: _vllm(2, call),
        frozenset({8, 9, 10, 11, 12}),
        16,
        _never,
    ),
    Package(
        "vllm-flash-attn",
        "vllm-flash-attn",
        "vllm_flash_attn",
        "flash_attn_varlen_func",
        _fa2_out,
        frozenset({8, 9}),
        16,
        _never,
    ),
    Package(
        "flash-attn",
        "flash-attn",
        "flash_attn",
        "flash_attn_varlen_func",
        _fa2,
        frozenset({8, 9, 10, 11, 12}),
        256,
        _never,
    ),
)
"""In the order in which they are tried."""
