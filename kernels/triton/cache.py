"""Writing to the paged cache: queries and keys are rotated, keys and values stored, in one go.

Owns how numbers become those of the cache. Layout: (blocks, block_size, kv_heads, head_dim).
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from chairlift.kernels.interface import AttentionRows, Heads, KVCache

__all__ = ["rotate_and_store"]


def rotate_and_store(qkv: Tensor, cache: KVCache, heads: Heads, rows: AttentionRows) -> None:
    """See ``kernels.interface.Attention.store``."""
    half = heads.cos.shape[1]
    group = heads.num_heads // heads.num_kv_heads
    _rotate_and_store[(qkv.shape[0], heads.num_kv_heads)](
        *(qkv, cache.keys, cache.values, heads.cos, heads.sin, rows.positions, rows.slots),
        HEADS=heads.num_heads,
        KV_HEADS=heads.num_kv_heads,
        DIM=heads.head_dim,
        HALF=half,
        LINES=triton.next_power_of_2(group + 1),
        PADDED_HALF=triton.next_power_of_2(half),
        PADDED=triton.next_power_of_2(heads.head_dim),
        num_warps=4,
    )


@triton.jit
def _as_stored(x, cache):
    """Eight bits hold ±448 at most; what is more becomes that, not a number that is none."""
    if cache.dtype.element_ty == tl.float8e4nv:
        x = tl.clamp(x.to(tl.float32), -448.0, 448.0)
    return x.to(cache.dtype.element_ty)


@triton.jit
def _rotate_and_store(
    qkv, keys, values, cos, sin, positions, slots,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, HALF: tl.constexpr,
    LINES: tl.constexpr, PADDED_HALF: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """One row's K/V head, and the queries that share it: lines of a tile, the key behind them."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = qkv + row * (HEADS + 2 * KV_HEADS) * DIM
    to = (tl.load(slots + row) * KV_HEADS + kv_head) * DIM
    position = tl.load(positions + row)

    line, pair = tl.arange(0, LINES), tl.arange(0, PADDED_HALF)
    head = tl.where(line < GROUP, kv_head * GROUP + line, HEADS + kv_head)
    is_pair = (line <= GROUP)[:, None] & (pair < HALF)[None, :]
    angle = position * HALF + pair
    c = tl.load(cos + angle, mask=pair < HALF, other=0.0)[None, :]
    s = tl.load(sin + angle, mask=pair < HALF, other=0.0)[None, :]
    first_at = at + head[:, None] * DIM + pair[None, :]
    first = tl.load(first_at, mask=is_pair, other=0.0).to(tl.float32)
    second = tl.load(first_at + HALF, mask=is_pair, other=0.0).to(tl.float32)
    turned = (first * c - second * s).to(qkv.dtype.element_ty)
    other = (second * c + first * s).to(qkv.dtype.element_ty)
    tl.store(first_at, turned, mask=is_pair)
    tl.store(first_at + HALF, other, mask=is_pair)
    is_key = is_pair & (line == GROUP)[:, None]
    key_at = keys + to + pair[None, :] + 0 * line[:, None]
    tl.store(key_at, _as_stored(turned, keys), mask=is_key)
    tl.store(key_at + HALF, _as_stored(other, keys), mask=is_key)

    element = tl.arange(0, PADDED)
    inside = element < DIM
    if 2 * HALF < DIM:
        rest = inside & (element >= 2 * HALF)
        key = tl.load(at + (HEADS + kv_head) * DIM + element, mask=rest)
        tl.store(keys + to + element, _as_stored(key, keys), mask=rest)
    value = tl.load(at + (HEADS + KV_HEADS + kv_head) * DIM + element, mask=inside)
    tl.store(values + to + element, _as_stored(value, values), mask=inside)
