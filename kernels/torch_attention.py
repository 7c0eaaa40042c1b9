"""Paged causal attention for mixed batches, in plain torch.

Owns how a step's attention is cut into calls of torch's fused attention, which is decided once a
step (``plan_attention``) and then run in every layer (``paged_attention``):

- Sequences with one new token are put in groups of similar context. A group is one gather of
  K and V blocks and one fused call, in which the query heads that share a K/V head stand where
  the query positions would: no K or V is repeated.
- A sequence with more new tokens is gathered alone, and attends in tiles of query rows.

Same meaning and cache layout as ``kernels.reference``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["AttentionPlan", "paged_attention", "plan_attention"]

# A group's gathered K and V should stay in the processor's cache; splitting a group costs about
# as much as gathering this much padding.
_GROUP_TOKENS = 8192
_GROUP_PADDING = 512
_QUERY_TILE = 512


@dataclass(frozen=True, slots=True)
class _Group:
    """Sequences with one row each.

    Attributes:
        rows: (n,) rows of the batch.
        blocks: (n × m,) block tables, padded to the longest of the group.
        mask: (n, 1, 1, m × block_size) 0 or -inf.
    """

    rows: Tensor
    blocks: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One sequence with the rows ``start … start + count - 1`` of the batch."""

    start: int
    count: int
    context: int
    blocks: Tensor


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How one step's attention runs, for every layer.

    Attributes:
        gathered: (2, blocks, elements of a block) room for the K and V of one group or chunk.
        causal: (tile, longest + tile) additive mask that all tiles cut theirs from::

                  ├──── longest ────┤├─ tile ─┤
                  0  0  0  0  0  0  0  0 -∞ -∞
                  0  0  0  0  0  0  0  0  0 -∞
                  0  0  0  0  0  0  0  0  0  0
    """

    groups: tuple[_Group, ...]
    chunks: tuple[_Chunk, ...]
    gathered: Tensor
    causal: Tensor


def plan_attention(
    block_tables: Tensor, context_lens: Tensor, query_lens: Tensor, cache: Tensor
) -> AttentionPlan:
    """Cut a step into groups and chunks.

    Args:
        block_tables: (sequences, blocks) int64; entries behind a sequence's end must be valid
            block numbers, and mean nothing.
        context_lens: (sequences,) tokens in the cache, the present rows included.
        query_lens: (sequences,) present rows of each, at least 1; rows stand in this order.
        cache: K or V of any layer; only its shape and kind matter.
    """
    block_size = cache.shape[1]
    contexts, counts = context_lens.tolist(), query_lens.tolist()
    starts = [0, *accumulate(counts)]
    num_blocks = [-(-context // block_size) for context in contexts]
    single = [index for index, count in enumerate(counts) if count == 1]
    groups = []
    for members in _by_length(single, num_blocks, block_size):
        width = num_blocks[members[-1]]
        hidden = torch.arange(width * block_size) >= context_lens[members, None]
        mask = cache.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        groups.append(
            _Group(
                rows=torch.tensor([starts[index] for index in members]),
                blocks=block_tables[members, :width].flatten(),
                mask=mask[:, None, None],
            )
        )
    chunks = [
        _Chunk(starts[index], count, contexts[index], block_tables[index, : num_blocks[index]])
        for index, count in enumerate(counts)
        if count > 1
    ]
    gathered = [part.blocks for part in groups] + [part.blocks for part in chunks]
    room = max(len(blocks) for blocks in gathered)
    return AttentionPlan(
        groups=tuple(groups),
        chunks=tuple(chunks),
        gathered=cache.new_empty(2, room, cache[0].numel()),
        causal=_causal_mask(chunks, cache),
    )


def paged_attention(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, plan: AttentionPlan
) -> Tensor:
    """Causal attention of each sequence's last tokens to all its tokens so far.

    Args:
        query: (rows, heads, head_dim).
        key_cache: (blocks, block_size, kv_heads, head_dim), the present rows already written.
        value_cache: as ``key_cache``.
        plan: of this step.

    Returns:
        (rows, heads, head_dim).
    """
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    kv_heads = key_cache.shape[2]
    for group in plan.groups:
        keys, values = _gather(key_cache, value_cache, group.blocks, plan.gathered)
        count, _, _, context = group.mask.shape
        shape = (count, context, kv_heads, -1)
        attended = F.scaled_dot_product_attention(
            query.index_select(0, group.rows).view(count, kv_heads, -1, query.shape[2]),
            keys.view(shape).transpose(1, 2),
            values.view(shape).transpose(1, 2),
            attn_mask=group.mask,
        )
        out.index_copy_(0, group.rows, attended.reshape(count, *query.shape[1:]))
    for chunk in plan.chunks:
        keys, values = _gather(key_cache, value_cache, chunk.blocks, plan.gathered)
        shape = (1, -1, kv_heads, query.shape[2])
        keys, values = keys.view(shape).transpose(1, 2), values.view(shape).transpose(1, 2)
        for first in range(0, chunk.count, _QUERY_TILE):
            rows = min(_QUERY_TILE, chunk.count - first)
            seen = chunk.context - chunk.count + first + rows
            tile = slice(chunk.start + first, chunk.start + first + rows)
            attended = F.scaled_dot_product_attention(
                query[tile].transpose(0, 1)[None],
                keys[:, :, :seen],
                values[:, :, :seen],
                attn_mask=_cut_mask(plan.causal, rows, seen),
                enable_gqa=True,
            )
            out[tile] = attended[0].transpose(0, 1)
    return out


def _by_length(members: list[int], num_blocks: list[int], block_size: int) -> list[list[int]]:
    """Groups of ``members``, each ascending in length, small and with little padding."""
    groups: list[list[int]] = []
    blocks = 0
    for index in sorted(members, key=num_blocks.__getitem__):
        longest = num_blocks[index]
        if groups:
            padded = longest * (len(groups[-1]) + 1)
            padding = (padded - blocks - longest) * block_size
            if padded * block_size <= _GROUP_TOKENS and padding <= _GROUP_PADDING:
                groups[-1].append(index)
                blocks += longest
                continue
        groups.append([index])
        blocks = longest
    return groups


def _causal_mask(chunks: list[_Chunk], cache: Tensor) -> Tensor:
    tile = min(_QUERY_TILE, max((chunk.count for chunk in chunks), default=0))
    longest = max((chunk.context for chunk in chunks), default=0)
    mask = cache.new_zeros(tile, longest + tile)
    mask[:, longest:] = cache.new_full((tile, tile), -torch.inf).triu_(1)
    return mask


def _cut_mask(causal: Tensor, rows: int, seen: int) -> Tensor:
    """The mask of ``rows`` queries that stand at the end of ``seen`` tokens."""
    longest = causal.shape[1] - causal.shape[0]
    return causal[:rows, longest + rows - seen : longest + rows]


def _gather(
    key_cache: Tensor, value_cache: Tensor, blocks: Tensor, room: Tensor
) -> tuple[Tensor, Tensor]:
    """Copies of the K and V ``blocks``, each (blocks, elements), in ``room``."""
    keys, values = room[0, : len(blocks)], room[1, : len(blocks)]
    torch.index_select(key_cache.flatten(1), 0, blocks, out=keys)
    torch.index_select(value_cache.flatten(1), 0, blocks, out=values)
    return keys, values
