"""Paged causal attention for mixed batches: decoded rows, chunks of prompts, drafts to check.

Owns the order in which a row's keys are summed, and how a step is cut into programs. A tile is
neighbouring rows of one sequence times the query heads that share a K/V head, so that K and V are
read once for all of them.

    positions   0 ...................... SPLIT ...................... 2 SPLIT ........
    of a split  KEYS, KEYS, KEYS, …      KEYS, KEYS, …
                one running softmax      the next one                 …
    of a row    the splits' results, merged in ascending order

Cuts lie at absolute positions, so which numbers are summed in which order is a matter of a row's
own position alone. Long contexts of few rows have their splits spread over programs, whose results
a second kernel merges; else one program does one split after the other and merges as it goes.
Either way the same function merges, with fused operations that leave a compiler no choice.

Why a row's bits do not depend on who shares its tile, its step or its chunk: there is one tile and
one number of warps for each (head_dim, dtype), so every row meets the same instructions; rows of a
tile do not mix in them; and keys or whole splits that only a neighbour sees change nothing: their
weights are exactly 0, and the factors on what was summed before exactly 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from chairlift.kernels.interface import AttentionRows, Heads, KVCache
from chairlift.kernels.triton.activations import tanh
from chairlift.kernels.triton.linear import PROGRAMS

__all__ = ["SPLIT", "AttentionTiles", "attend", "cut_rows"]

SPLIT = 512
"""Positions whose keys one running softmax covers."""

_LOG2_E = math.log2(math.e)
_PROGRAMS = 4 * PROGRAMS  # enough for every multiprocessor to have a few
_MOST_SPREAD = 1 << 25  # numbers that spread programs may leave for the merge


@dataclass(frozen=True, slots=True)
class _Shape:
    """Of a tile: stacked rows (see the module), keys at once."""

    stacked: int
    keys: int
    warps: int
    stages: int


def _shape_for(heads: Heads, dtype: torch.dtype) -> _Shape:
    group = triton.next_power_of_2(heads.num_heads // heads.num_kv_heads)
    if dtype == torch.float32:
        return _Shape(max(32, group), keys=32, warps=4, stages=1)
    if heads.head_dim > 128:
        return _Shape(max(64, group), keys=32, warps=8, stages=2)
    return _Shape(max(64, group), keys=64, warps=4, stages=2)


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """How a step is cut for heads of one kind, without anything being asked of the GPU.

    Attributes:
        rows: of the step.
        shape: of each tile.
        tile_rows: rows of a sequence in one.
        row_starts: (sequences,) int32, first row of each.
        tile_ends: (sequences,) int32, how many tiles it and those before it have.
        count: at least as many as there are.
        spread: programs that share the splits of a tile.
        splits: at least as many as the longest context has.
    """

    rows: AttentionRows
    shape: _Shape
    tile_rows: int
    row_starts: Tensor
    tile_ends: Tensor
    count: int
    spread: int
    splits: int


def cut_rows(heads: Heads, rows: AttentionRows, dtype: torch.dtype) -> AttentionTiles:
    shape = _shape_for(heads, dtype)
    sequences = rows.query_lens.shape[0]
    tile_rows = shape.stacked // (heads.num_heads // heads.num_kv_heads)
    row_starts, tile_ends = torch.empty(
        2, sequences, dtype=torch.int32, device=rows.query_lens.device
    )
    _cut[(1,)](
        *(rows.query_lens, row_starts, tile_ends, sequences, tile_rows),
        SEQUENCES=triton.next_power_of_2(sequences),
    )
    count = min(
        rows.positions.shape[0] // tile_rows + sequences,
        sequences * triton.cdiv(rows.most_rows, tile_rows),
    )
    splits = triton.cdiv(rows.most_context, SPLIT)
    visited = splits
    if heads.window is not None:
        visited = min(splits, triton.cdiv(heads.window + tile_rows, SPLIT) + 1)
    spread = min(visited, max(1, _PROGRAMS // (count * heads.num_kv_heads)))
    if rows.positions.shape[0] * heads.num_heads * splits * heads.head_dim > _MOST_SPREAD:
        spread = 1
    return AttentionTiles(rows, shape, tile_rows, row_starts, tile_ends, count, spread, splits)


def attend(
    qkv: Tensor, cache: KVCache, heads: Heads, tiles: AttentionTiles, *, out: Tensor
) -> None:
    """See ``kernels.interface.Attention.attend``; caches are (blocks, block_size, heads, dim)."""
    rows, shape = tiles.rows, tiles.shape
    count = qkv.shape[0]
    spreads = tiles.spread > 1
    parts = norms = out
    if spreads:
        places = (count, heads.num_heads, tiles.splits)
        parts = torch.empty(*places, heads.head_dim, device=out.device, dtype=torch.float32)
        norms = torch.empty(*places, 2, device=out.device, dtype=torch.float32)
    padded = max(16, triton.next_power_of_2(heads.head_dim))
    sizes = {"HEADS": heads.num_heads, "DIM": heads.head_dim, "PADDED": padded}
    _attend[(tiles.count, heads.num_kv_heads, tiles.spread)](
        *(qkv, cache.keys, cache.values, out, parts, norms),
        *(rows.block_tables, rows.context_lens, rows.query_lens),
        *(tiles.row_starts, tiles.tile_ends, rows.query_lens.shape[0]),
        *(rows.block_tables.stride(0), tiles.splits, heads.scale * _LOG2_E),
        **sizes,
        WIDTH=heads.width,
        KV_HEADS=heads.num_kv_heads,
        BLOCK_SIZE=rows.block_size,
        WINDOW=heads.window or 0,
        SOFT_CAP=(heads.soft_cap or 0.0) * _LOG2_E,
        SPREADS=spreads,
        TILE_ROWS=tiles.tile_rows,
        STACKED=shape.stacked,
        KEYS=shape.keys,
        SPLIT=SPLIT,
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    if spreads:
        _merge_splits[(count, heads.num_kv_heads)](
            *(parts, norms, rows.positions, out, tiles.splits),
            **sizes,
            LINES=triton.next_power_of_2(heads.num_heads // heads.num_kv_heads),
            KV_HEADS=heads.num_kv_heads,
            WINDOW=heads.window or 0,
            SPLIT=SPLIT,
            num_warps=4,
        )


@triton.jit(do_not_specialize=["sequences", "tile_rows"])
def _cut(query_lens, row_starts, tile_ends, sequences, tile_rows, SEQUENCES: tl.constexpr):
    at = tl.arange(0, SEQUENCES)
    lens = tl.load(query_lens + at, mask=at < sequences, other=0).to(tl.int32)
    tl.store(row_starts + at, tl.cumsum(lens, 0) - lens, mask=at < sequences)
    tiles = (lens + tile_rows - 1) // tile_rows
    tl.store(tile_ends + at, tl.cumsum(tiles, 0), mask=at < sequences)


@triton.jit
def _sequence_of(tile, tile_ends, sequences):
    """The first whose tiles end behind this one, or ``sequences``."""
    low, high = 0, sequences
    while low < high:
        middle = (low + high) // 2
        if tl.load(tile_ends + middle) <= tile:
            low = middle + 1
        else:
            high = middle
    return low


@triton.jit
def _merge(peak, mass, total, more_peak, more_mass, more_total):
    """Two running softmaxes into one; a peak of −∞ has seen nothing."""
    highest = tl.maximum(peak, more_peak)
    base = tl.where(highest == -float("inf"), 0.0, highest)
    factor, more_factor = tl.exp2(peak - base), tl.exp2(more_peak - base)
    mass = tl.fma(mass, factor, more_mass * more_factor)
    total = tl.fma(
        total,
        tl.broadcast_to(factor[:, None], total.shape),
        more_total * more_factor[:, None],
    )
    return highest, mass, total


@triton.jit
def _scores(query, keys, at, positions, scale, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr):
    """To the base of 2; −∞ for what a row does not see."""
    scores = tl.dot(query, keys, input_precision="ieee") * scale
    if SOFT_CAP > 0.0:
        scores = SOFT_CAP * tanh(scores / SOFT_CAP)
    seen = at[None, :] <= positions[:, None]
    if WINDOW > 0:
        seen &= at[None, :] > positions[:, None] - WINDOW
    return tl.where(seen, scores, -float("inf"))


@triton.jit
def _split(
    query, keys, values, table, positions, first, last, scale,
    STRIDE: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    SOFT_CAP: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """The running softmax over the positions ``first … last - 1``; ``first`` is where KEYS start.

    ``keys`` and ``values`` point to the head at slot 0.
    """
    STACKED: tl.constexpr = query.shape[0]
    PADDED: tl.constexpr = query.shape[1]
    element = tl.arange(0, PADDED)
    peak = tl.full([STACKED], -float("inf"), tl.float32)
    mass = tl.zeros([STACKED], tl.float32)
    total = tl.zeros([STACKED, PADDED], tl.float32)
    for start in range(first, last, KEYS):
        at = start + tl.arange(0, KEYS)
        inside = at < last
        block = tl.load(table + at // BLOCK_SIZE, mask=inside, other=0)
        place = (block * BLOCK_SIZE + at % BLOCK_SIZE) * STRIDE
        key_at = keys + place[None, :] + element[:, None]
        is_key = inside[None, :] & (element < DIM)[:, None]
        key = tl.load(key_at, mask=is_key, other=0.0).to(query.dtype)
        scores = _scores(query, key, at, positions, scale, WINDOW, SOFT_CAP)
        highest = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(highest == -float("inf"), 0.0, highest)
        weights, factor = tl.exp2(scores - base[:, None]), tl.exp2(peak - base)
        mass = tl.fma(mass, factor, tl.sum(weights, 1))
        value_at = values + place[:, None] + element[None, :]
        is_value = inside[:, None] & (element < DIM)[None, :]
        value = tl.load(value_at, mask=is_value, other=0.0).to(query.dtype)
        total = total * factor[:, None]
        total = tl.dot(weights.to(query.dtype), value, total, input_precision="ieee")
        peak = highest
    return peak, mass, total


@triton.jit(do_not_specialize=["sequences", "table_stride", "splits"])
def _attend(
    qkv, keys, values, out, parts, norms,
    tables, context_lens, query_lens,
    row_starts, tile_ends, sequences,
    table_stride, splits, scale,
    HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, WIDTH: tl.constexpr,
    KV_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr,
    SPREADS: tl.constexpr, TILE_ROWS: tl.constexpr, STACKED: tl.constexpr, KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
):  # fmt: skip
    GROUP: tl.constexpr = HEADS // KV_HEADS
    STRIDE: tl.constexpr = KV_HEADS * DIM
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    sequence = _sequence_of(tile, tile_ends, sequences)
    if sequence == sequences:
        return  # there were fewer tiles than there might have been
    count = tl.load(query_lens + sequence).to(tl.int32)
    context = tl.load(context_lens + sequence).to(tl.int32)
    before = tile - tl.load(tile_ends + sequence) + tl.cdiv(count, TILE_ROWS)
    first_row = before * TILE_ROWS
    end_row = tl.minimum(first_row + TILE_ROWS, count)

    stacked, element = tl.arange(0, STACKED), tl.arange(0, PADDED)
    within = first_row + stacked // GROUP
    positions = context - count + within
    row = (tl.load(row_starts + sequence) + within).to(tl.int64)
    head = kv_head * GROUP + stacked % GROUP
    is_there = (within < end_row)[:, None] & (element < DIM)[None, :]
    query_at = qkv + row[:, None] * WIDTH + head[:, None] * DIM + element[None, :]
    query = tl.load(query_at, mask=is_there, other=0.0)

    last = context - count + end_row
    first = 0
    if WINDOW > 0:
        first = tl.maximum(context - count + first_row - WINDOW + 1, 0)
    peak = tl.full([STACKED], -float("inf"), tl.float32)
    mass = tl.zeros([STACKED], tl.float32)
    total = tl.zeros([STACKED, PADDED], tl.float32)
    place = (row * HEADS + head) * splits
    for split in range(first // SPLIT + tl.program_id(2), tl.cdiv(last, SPLIT), tl.num_programs(2)):
        start = tl.maximum(split * SPLIT, first // KEYS * KEYS)
        part_peak, part_mass, part = _split(
            query, keys + kv_head * DIM, values + kv_head * DIM, tables + sequence * table_stride,
            positions, start, tl.minimum(split * SPLIT + SPLIT, last), scale,
            STRIDE, DIM, BLOCK_SIZE, WINDOW, SOFT_CAP, KEYS,
        )  # fmt: skip
        if SPREADS:
            norm_at = norms + (place + split) * 2
            tl.store(norm_at, part_peak, mask=within < end_row)
            tl.store(norm_at + 1, part_mass, mask=within < end_row)
            part_at = parts + (place + split)[:, None] * DIM + element[None, :]
            tl.store(part_at, part, mask=is_there)
        else:
            peak, mass, total = _merge(peak, mass, total, part_peak, part_mass, part)
    if not SPREADS:
        out_at = out + (row[:, None] * HEADS + head[:, None]) * DIM + element[None, :]
        tl.store(out_at, (total / mass[:, None]).to(out.dtype.element_ty), mask=is_there)


@triton.jit(do_not_specialize=["splits"])
def _merge_splits(
    parts, norms, positions, out, splits,
    HEADS: tl.constexpr, DIM: tl.constexpr, PADDED: tl.constexpr, LINES: tl.constexpr,
    KV_HEADS: tl.constexpr, WINDOW: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Of one row and the heads that share a K/V head, the splits that the row sees."""
    GROUP: tl.constexpr = HEADS // KV_HEADS
    row, line, element = tl.program_id(0).to(tl.int64), tl.arange(0, LINES), tl.arange(0, PADDED)
    position = tl.load(positions + row).to(tl.int32)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(position - WINDOW + 1, 0) // SPLIT
    head = row * HEADS + tl.program_id(1) * GROUP + line
    is_there = (line < GROUP)[:, None] & (element < DIM)[None, :]
    peak = tl.full([LINES], -float("inf"), tl.float32)
    mass = tl.zeros([LINES], tl.float32)
    total = tl.zeros([LINES, PADDED], tl.float32)
    # Loads wait for nothing that is computed, so a few are under way at once.
    for split in tl.range(first, position // SPLIT + 1, loop_unroll_factor=4):
        place = head * splits + split
        part_at = parts + place[:, None] * DIM + element[None, :]
        part = tl.load(part_at, mask=is_there, other=0.0)
        part_peak = tl.load(norms + place * 2, mask=line < GROUP, other=0.0)
        part_mass = tl.load(norms + place * 2 + 1, mask=line < GROUP, other=1.0)
        peak, mass, total = _merge(peak, mass, total, part_peak, part_mass, part)
    out_at = out + head[:, None] * DIM + element[None, :]
    tl.store(out_at, (total / mass[:, None]).to(out.dtype.element_ty), mask=is_there)
