"""Sequences of random queries, keys and values, and steps of attention over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from chairlift.kernels.interface import AttentionRows, Heads, Kernels, KVCache


@dataclass(frozen=True)
class History:
    """A sequence: ``qkv`` of every position, not yet rotated, and where its blocks lie."""

    qkv: Tensor
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """The positions ``start … end - 1`` of a history."""

    history: History
    start: int
    end: int


def make_heads(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    rotated: int | None = None,
    **scoring: Any,
) -> Heads:
    """``scoring`` is scale, window and soft cap."""
    angles = torch.rand(512, (rotated or head_dim) // 2, generator=_random(1))
    return Heads(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        cos=(6 * angles).cos(),
        sin=(6 * angles).sin(),
        **({"scale": head_dim**-0.5} | scoring),
    )


def make_history(heads: Heads, length: int, block_size: int, *, seed: int) -> History:
    """Blocks of different seeds below 8 do not overlap, nor are they in order."""
    count = -(-length // block_size)
    order = torch.randperm(512 // block_size, generator=_random(seed))[:count]
    blocks = tuple((order + seed * (512 // block_size)).tolist())
    return History(2 * torch.randn(length, heads.width, generator=_random(seed)), blocks)


def new_cache(
    kernels: Kernels, heads: Heads, block_size: int, dtype: torch.dtype = torch.float32
) -> KVCache:
    return kernels.new_cache(heads, 8 * (512 // block_size), block_size, dtype)


def step_rows(steps: Iterable[Step], block_size: int) -> AttentionRows:
    steps = list(steps)
    tables = [torch.tensor(step.history.blocks) for step in steps]
    positions = [torch.arange(step.start, step.end) for step in steps]
    return AttentionRows(
        positions=torch.cat(positions),
        slots=torch.cat(
            [
                table[at // block_size] * block_size + at % block_size
                for table, at in zip(tables, positions, strict=True)
            ]
        ),
        block_tables=torch.nn.utils.rnn.pad_sequence(tables, batch_first=True),
        context_lens=torch.tensor([step.end for step in steps]),
        query_lens=torch.tensor([step.end - step.start for step in steps]),
        block_size=block_size,
        most_rows=max(step.end - step.start for step in steps),
        most_context=max(step.end for step in steps),
    )


def run(
    kernels: Kernels, heads: Heads, cache: KVCache, block_size: int, steps: Iterable[Step]
) -> list[Tensor]:
    """One step of them all; the attention of each."""
    steps = list(steps)
    attention = kernels.attention(heads, step_rows(steps, block_size))
    qkv = torch.cat([step.history.qkv[step.start : step.end] for step in steps])
    out = torch.full((len(qkv), heads.num_heads * heads.head_dim), torch.nan)
    attention.store(qkv, cache)
    attention.attend(qkv, cache, out=out)
    return list(out.split([step.end - step.start for step in steps]))


def _random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
