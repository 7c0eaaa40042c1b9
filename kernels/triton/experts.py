"""A mixture of experts on the device: nothing that a row chooses is ever asked for by the host.

Owns who takes which expert, and the way of rows through their experts:

    routes   (rows, per_token)  each row's experts, ascending, and their weights
    pairs    row × per_token + place; a pair is one row at one of its experts
    order    (pairs,)           pairs by expert, each expert's in ascending order
    tiles    each expert's share of ``order`` is cut into tiles; as there are at most
             pairs / tile + experts of them, so many programs start, and some find nothing to do

A row's results are summed in ascending order of its experts, in float32. One tile and one number
of warps serve any number of rows, so a row's bits do not depend on who else took its experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from chairlift.kernels.interface import Experts, Packed
from chairlift.kernels.triton.activations import gated
from chairlift.kernels.triton.linear import Tile, add_split

__all__ = ["ExpertWeights", "mix_experts"]

_SCANNED = 1024  # pairs that are looked at at once


def _tile(dtype: torch.dtype) -> Tile:
    if dtype == torch.float32:
        return Tile(rows=16, outputs=64, inputs=64, warps=4, stages=2)
    return Tile(rows=64, outputs=128, inputs=64, warps=4, stages=4)


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """Where the matrices of a layer's experts lie, (experts,) int64 addresses on the device.

    ``layer`` keeps them there.
    """

    layer: Experts
    gate_up: Tensor
    down: Tensor

    @classmethod
    def of(cls, layer: Experts, device: torch.device) -> ExpertWeights:
        gate_up = _addresses([expert.gate_up for expert in layer.experts], device)
        return cls(layer, gate_up, _addresses([expert.down for expert in layer.experts], device))


def mix_experts(scores: Tensor, x: Tensor, weights: ExpertWeights, *, out: Tensor) -> None:
    """See ``kernels.interface.Kernels.experts``.

    Args:
        scores: (rows, experts) float32 of the router.
        x: (rows, hidden).
        weights: of the layer.
        out: as ``x``.
    """
    layer = weights.layer
    (rows, hidden), taken, count = x.shape, layer.per_token, len(layer.experts)
    pairs = rows * taken
    chosen = torch.empty(rows, taken, dtype=torch.int32, device=x.device)
    shares = torch.empty(rows, taken, dtype=torch.float32, device=x.device)
    order = torch.empty(pairs, dtype=torch.int32, device=x.device)
    counts = torch.empty(count, dtype=torch.int32, device=x.device)
    padded = triton.next_power_of_2(count)
    _route[(rows,)](
        *(scores, chosen, shares),
        EXPERTS=count,
        TAKEN=taken,
        NORMALISES=layer.normalise,
        PADDED=padded,
        num_warps=1,
    )
    _sort_pairs[(count,)](chosen, order, counts, pairs, SCANNED=_SCANNED)
    first = layer.experts[0]
    gate_up = x.new_empty(pairs, first.gate_up.outputs)
    inner = x.new_empty(pairs, first.down.inputs)
    made = torch.empty(pairs, hidden, dtype=torch.float32, device=x.device)
    _grouped(x, weights.gate_up, order, counts, out=gate_up, taken=taken)
    gated(gate_up, first.activation, out=inner)
    _grouped(inner, weights.down, order, counts, out=made, taken=0)
    _combine[(rows, triton.cdiv(hidden, 1024))](
        *(made, shares, out), HIDDEN=hidden, TAKEN=taken, BLOCK=1024
    )


def _addresses(matrices: Sequence[Packed], device: torch.device) -> Tensor:
    if any(matrix.bias is not None for matrix in matrices):
        raise ValueError("an expert's matrix has a bias")
    return torch.tensor([matrix.parts[0].weight.data_ptr() for matrix in matrices]).to(device)


def _grouped(
    x: Tensor, weights: Tensor, order: Tensor, counts: Tensor, *, out: Tensor, taken: int
) -> None:
    """Each pair's product with its expert's matrix.

    With ``taken``, ``x`` is by row and ``out`` by place in the order; with 0, ``x`` is by place
    and ``out`` by pair.
    """
    pairs, outputs = out.shape
    tile, experts = _tile(x.dtype), counts.shape[0]
    tiles = min(pairs // tile.rows + experts, pairs)
    _grouped_linear[(triton.cdiv(outputs, tile.outputs), tiles)](
        *(x, weights, order, counts, out),
        OUTPUTS=outputs,
        INPUTS=x.shape[1],
        EXPERTS=experts,
        PADDED=triton.next_power_of_2(experts),
        TAKEN=taken,
        TILE_ROWS=tile.rows,
        TILE_OUTPUTS=tile.outputs,
        TILE_INPUTS=tile.inputs,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


@triton.jit
def _route(
    scores, chosen, shares,
    EXPERTS: tl.constexpr, TAKEN: tl.constexpr, NORMALISES: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The likeliest of a row's experts, of equal ones the first; in ascending order."""
    row, expert = tl.program_id(0), tl.arange(0, PADDED)
    score = tl.load(scores + row * EXPERTS + expert, mask=expert < EXPERTS, other=0.0)
    # What is no number comes last, before what is no expert: so many are always found.
    score = tl.where(score > -3e38, score, -3e38)
    score = tl.where(expert < EXPERTS, score, -float("inf"))
    weight = tl.exp(score - tl.max(score, 0))
    weight /= tl.sum(weight, 0)
    left = score
    is_taken = expert < 0
    for _ in tl.static_range(TAKEN):
        best = tl.argmax(left, 0, tie_break_left=True)
        is_taken |= expert == best
        left = tl.where(expert == best, -float("inf"), left)
    if NORMALISES:
        weight /= tl.sum(tl.where(is_taken, weight, 0.0), 0)
    at = row * TAKEN + tl.cumsum(is_taken.to(tl.int32), 0) - 1
    tl.store(chosen + at, expert, mask=is_taken)
    tl.store(shares + at, weight, mask=is_taken)


@triton.jit(do_not_specialize=["pairs"])
def _sort_pairs(chosen, order, counts, pairs, SCANNED: tl.constexpr):
    """One program for each expert finds its pairs, and how many stand before them."""
    mine = tl.program_id(0)
    before = tl.zeros([SCANNED], tl.int32)
    for start in range(0, pairs, SCANNED):
        at = start + tl.arange(0, SCANNED)
        expert = tl.load(chosen + at, mask=at < pairs, other=mine)
        before += (expert < mine).to(tl.int32)
    first = tl.sum(before, 0)
    found = first
    for start in range(0, pairs, SCANNED):
        at = start + tl.arange(0, SCANNED)
        is_mine = tl.load(chosen + at, mask=at < pairs, other=-1) == mine
        place = found + tl.cumsum(is_mine.to(tl.int32), 0) - 1
        tl.store(order + place, at, mask=is_mine)
        found += tl.sum(is_mine.to(tl.int32), 0)
    tl.store(counts + mine, found - first)


@triton.jit
def _grouped_linear(
    x, weights, order, counts, out,
    OUTPUTS: tl.constexpr, INPUTS: tl.constexpr, EXPERTS: tl.constexpr, PADDED: tl.constexpr,
    TAKEN: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_OUTPUTS: tl.constexpr,
    TILE_INPUTS: tl.constexpr,
):  # fmt: skip
    tile, expert = tl.program_id(1), tl.arange(0, PADDED)
    count = tl.load(counts + expert, mask=expert < EXPERTS, other=0)
    tiles = tl.cdiv(count, TILE_ROWS)
    ends = tl.cumsum(tiles, 0)
    mine = tl.sum((ends <= tile).to(tl.int32), 0)
    if mine >= EXPERTS:
        return  # there were fewer tiles than there might have been
    is_mine = expert == mine
    within = (tile - tl.sum(tl.where(is_mine, ends - tiles, 0), 0)) * TILE_ROWS
    within += tl.arange(0, TILE_ROWS)
    is_row = within < tl.sum(tl.where(is_mine, count, 0), 0)
    place = tl.sum(tl.where(expert < mine, count, 0), 0) + within
    pair = tl.load(order + place, mask=is_row, other=0)

    columns = tl.program_id(0) * TILE_OUTPUTS + tl.arange(0, TILE_OUTPUTS)
    weight = tl.load(weights + mine).to(tl.pointer_type(x.dtype.element_ty))
    weight = tl.multiple_of(weight, 16)
    source, to = place, pair
    if TAKEN > 0:
        source, to = pair // TAKEN, place
    total = add_split(
        x + source.to(tl.int64) * INPUTS,
        weight + tl.minimum(columns, OUTPUTS - 1).to(tl.int64) * INPUTS,
        is_row, 0, INPUTS,
        INPUTS, TILE_ROWS, TILE_OUTPUTS, TILE_INPUTS,
    )  # fmt: skip
    at = out + to.to(tl.int64)[:, None] * OUTPUTS + columns[None, :]
    inside = is_row[:, None] & (columns < OUTPUTS)[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _combine(made, shares, out, HIDDEN: tl.constexpr, TAKEN: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < HIDDEN
    total = tl.zeros([BLOCK], tl.float32)
    for place in tl.static_range(TAKEN):
        pair = row * TAKEN + place
        share = tl.load(shares + pair)
        one = tl.load(made + pair * HIDDEN + at, mask=inside, other=0.0)
        total = tl.fma(one, tl.full([BLOCK], 1.0, tl.float32) * share, total)
    tl.store(out + row * HIDDEN + at, total.to(out.dtype.element_ty), mask=inside)
