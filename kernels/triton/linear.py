"""Products with weight matrices in which a row's bits are its own.

Owns the tiles and the order of summation; knows no layer. How a product is cut is chosen by the
shape of the weights and their type, never by the rows that stand in the batch:

    inputs   0 ........ split ........ 2 split ........ K      splits of the inputs: by (N, K)
    a split  tile, tile, tile, …  each of ``inputs`` numbers, in ascending order, into one sum
    total    the splits' sums in ascending order, then the bias, then what ``out`` held

Few rows are bound by memory: weights must be streamed by every multiprocessor of the GPU, so the
splits of a narrow matrix are spread over programs. The last program to arrive at a tile adds up
what the others left, in the order of the splits, whoever came when. Many rows are bound by
arithmetic: larger tiles, and mostly all splits in one program, one after the other. Both give the
same numbers:

- Rows of a tile do not mix in a tensor core, and rows that are not there are zeros.
- Both tiles have at least 64 rows and four warps a 64 rows, so on a Hopper GPU both become the
  same instructions (m64, 16 inputs each), chained through one accumulator in ascending order. How
  wide a tile is changes how many columns an instruction has, not what happens in one of them.
- Both take the same number of inputs at once, and cut the splits at the same places.

The second point is no promise of NVIDIA's; it is to be confirmed on each kind of GPU by the
exactness check of ``make gpu-report``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["PROGRAMS", "Linear", "Tile", "add_split", "count_splits", "tile_for"]

PROGRAMS = 132
"""Multiprocessors of an H100 or H200; a constant, for what is cut by it must not vary."""

_SLOTS = 2 * PROGRAMS  # programs with few rows that run at once
_LEAST_SPLIT = 256  # inputs
_GROUP = 8  # tiles of rows that share their weights while those are near
_INPUTS = 64


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program computes, and with what."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


_FEW = Tile(rows=64, outputs=64, inputs=_INPUTS, warps=4, stages=5)
_MANY = Tile(rows=128, outputs=128, inputs=_INPUTS, warps=8, stages=3)
# Without tensor cores, which would round float32 to fewer bits.
_FEW_FLOAT = Tile(rows=16, outputs=64, inputs=_INPUTS, warps=4, stages=2)
_MANY_FLOAT = Tile(rows=64, outputs=64, inputs=_INPUTS, warps=4, stages=2)


def tile_for(rows: int, dtype: torch.dtype) -> Tile:
    """The tile for so many rows; see the module for why it changes no bit."""
    if dtype == torch.float32:
        return _FEW_FLOAT if rows <= _FEW_FLOAT.rows else _MANY_FLOAT
    return _FEW if rows <= _FEW.rows else _MANY


def count_splits(outputs: int, inputs: int) -> int:
    """As many as fill the GPU when there is one tile of rows; a power of two."""
    tiles, splits = triton.cdiv(outputs, _FEW.outputs), 1
    while 2 * splits * tiles <= _SLOTS and 2 * splits * _LEAST_SPLIT <= inputs:
        splits *= 2
    return splits


class Linear:
    """The product, with the counters that programs meet at; for one stream of one device."""

    def __init__(self, device: torch.device) -> None:
        # Each ends a product as it began it: at zero.
        self._arrived = torch.zeros(_SLOTS, dtype=torch.int32, device=device)

    def __call__(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor, adds: bool = False
    ) -> None:
        """``out (+)= x weightᵀ + bias``: (rows, K), (N, K), (N,) → (rows, N), all contiguous."""
        (rows, inputs), outputs = x.shape, weight.shape[0]
        tile = tile_for(rows, x.dtype)
        splits = count_splits(outputs, inputs)
        tiles = triton.cdiv(rows, tile.rows) * triton.cdiv(outputs, tile.outputs)
        spreads = splits > 1 and (rows <= tile.rows or 2 * tiles <= PROGRAMS)
        spreads = spreads and tiles <= _SLOTS
        partial = out
        if spreads:
            partial = torch.empty(splits, rows, outputs, device=x.device, dtype=torch.float32)
        _linear[(tiles, splits if spreads else 1)](
            *(x, weight, out if bias is None else bias, out, partial, self._arrived, rows),
            OUTPUTS=outputs,
            INPUTS=inputs,
            SPLITS=splits,
            SPLIT=triton.cdiv(inputs, splits * tile.inputs) * tile.inputs,
            SPREADS=spreads,
            HAS_BIAS=bias is not None,
            ADDS=adds,
            TILE_ROWS=tile.rows,
            TILE_OUTPUTS=tile.outputs,
            TILE_INPUTS=tile.inputs,
            GROUP=_GROUP,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )


@triton.jit
def add_split(
    x_at,
    weight_at,
    is_row,
    first,
    last,
    INPUTS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
):
    """The sum over inputs ``first … last - 1``, ascending.

    ``x_at`` and ``weight_at`` point to the starts of (rows,) and (outputs,) at input 0.
    """
    inner = tl.arange(0, TILE_INPUTS)
    total = tl.zeros([TILE_ROWS, TILE_OUTPUTS], tl.float32)
    for start in range(first, last, TILE_INPUTS):
        at = start + inner
        if INPUTS % TILE_INPUTS == 0:
            x = tl.load(x_at[:, None] + at[None, :], mask=is_row[:, None], other=0.0)
            weight = tl.load(weight_at[None, :] + at[:, None])
        else:
            inside = at < INPUTS
            x = tl.load(x_at[:, None] + at, mask=is_row[:, None] & inside, other=0.0)
            weight = tl.load(weight_at[None, :] + at[:, None], mask=inside[:, None], other=0.0)
        total = tl.dot(x, weight, total, input_precision="ieee")
    return total


@triton.jit
def _tile_at(index, rows, OUTPUTS: tl.constexpr, TILE_ROWS, TILE_OUTPUTS, GROUP):
    """Tile of rows, tile of outputs: ``GROUP`` tiles of rows are done for one of outputs."""
    row_tiles = tl.cdiv(rows, TILE_ROWS)
    in_group = GROUP * tl.cdiv(OUTPUTS, TILE_OUTPUTS)
    first = index // in_group * GROUP
    size = tl.minimum(row_tiles - first, GROUP)
    within = index % in_group
    return first + within % size, within // size


@triton.jit
def _finish(
    total, rows, columns, is_row, bias, out, OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=columns < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    at = out + rows[:, None] * OUTPUTS + columns[None, :]
    inside = is_row[:, None] & (columns < OUTPUTS)[None, :]
    if ADDS:
        total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _linear(
    x,
    weight,
    bias,
    out,
    partial,
    arrived,
    count,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
    SPLIT: tl.constexpr,
    SPREADS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
    GROUP: tl.constexpr,
):
    tile = tl.program_id(0)
    row_tile, column_tile = _tile_at(tile, count, OUTPUTS, TILE_ROWS, TILE_OUTPUTS, GROUP)
    rows = (row_tile * TILE_ROWS + tl.arange(0, TILE_ROWS)).to(tl.int64)
    columns = (column_tile * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)).to(tl.int64)
    is_row = rows < count
    x_at = x + rows * INPUTS
    weight_at = weight + tl.minimum(columns, OUTPUTS - 1) * INPUTS
    if SPREADS:
        first = tl.program_id(1) * SPLIT
        part = add_split(
            x_at, weight_at, is_row, first, tl.minimum(first + SPLIT, INPUTS),
            INPUTS, TILE_ROWS, TILE_OUTPUTS, TILE_INPUTS,
        )  # fmt: skip
        at = partial + rows[:, None] * OUTPUTS + columns[None, :]
        inside = is_row[:, None] & (columns < OUTPUTS)[None, :]
        stride = count.to(tl.int64) * OUTPUTS
        tl.store(at + tl.program_id(1) * stride, part, mask=inside)
        tl.debug_barrier()  # all of this program's part is written before it counts as arrived
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel", scope="gpu") == SPLITS - 1:
            total = tl.zeros([TILE_ROWS, TILE_OUTPUTS], tl.float32)
            for split in tl.static_range(SPLITS):
                # Not through the nearest cache, which knows nothing of other programs' writing.
                total += tl.load(at + split * stride, mask=inside, other=0.0, cache_modifier=".cg")
            tl.store(arrived + tile, 0)
            _finish(total, rows, columns, is_row, bias, out, OUTPUTS, HAS_BIAS, ADDS)
    else:
        total = tl.zeros([TILE_ROWS, TILE_OUTPUTS], tl.float32)
        for split in range(SPLITS):
            first = split * SPLIT
            total += add_split(
                x_at, weight_at, is_row, first, tl.minimum(first + SPLIT, INPUTS),
                INPUTS, TILE_ROWS, TILE_OUTPUTS, TILE_INPUTS,
            )  # fmt: skip
        _finish(total, rows, columns, is_row, bias, out, OUTPUTS, HAS_BIAS, ADDS)
