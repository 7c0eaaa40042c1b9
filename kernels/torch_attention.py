"""Paged causal attention for mixed batches, in plain torch.

Owns how a step's attention is cut into calls of torch's fused attention, which is decided once a
step (``plan_attention``) and then run in every layer (``paged_attention``):

- Sequences with one new token are put in groups of similar context. A group is one gather of
  K and V blocks and one fused call, in which the query heads that share a K/V head stand where
  the query positions would: no K or V is repeated.
- A sequence with more new tokens is gathered alone, and attends in tiles of query rows.

Blocks that lie before every window are not gathered. Where scores have a soft cap, which torch's
fused attention lacks, they are written out.

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
        blocks: (n × m,) of the block tables, padded to the most of the group.
        mask: (n, 1, 1, m × block_size) 0 or -inf.
    """

    rows: Tensor
    blocks: Tensor
    mask: Tensor


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One sequence with the rows ``start … start + count - 1`` of the batch.

    ``blocks`` begin with the first that any of its rows sees; ``context`` counts from there.
    """

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

            With a window a row has as many zeros at most, and -∞ before them.
        window: positions that a row sees, its own included.
    """

    groups: tuple[_Group, ...]
    chunks: tuple[_Chunk, ...]
    gathered: Tensor
    causal: Tensor
    window: int | None


def plan_attention(
    block_tables: Tensor,
    context_lens: Tensor,
    query_lens: Tensor,
    cache: Tensor,
    *,
    window: int | None = None,
) -> AttentionPlan:
    """Cut a step into groups and chunks.

    Args:
        block_tables: (sequences, blocks) int64; entries behind a sequence's end must be valid
            block numbers, and mean nothing.
        context_lens: (sequences,) tokens in the cache, the present rows included.
        query_lens: (sequences,) present rows of each, at least 1; rows stand in this order.
        cache: K or V of any layer; only its shape and kind matter.
        window: positions that a row sees, its own included; None for all.
    """
    block_size = cache.shape[1]
    contexts, counts = context_lens.tolist(), query_lens.tolist()
    starts = [0, *accumulate(counts)]
    ends = [-(-context // block_size) for context in contexts]
    firsts = _first_blocks(contexts, counts, block_size, window)
    num_blocks = [end - first for first, end in zip(firsts, ends, strict=True)]
    single = [index for index, count in enumerate(counts) if count == 1]
    groups = []
    for members in _by_length(single, num_blocks, block_size):
        first = torch.tensor([firsts[index] for index in members], device=cache.device)[:, None]
        width = num_blocks[members[-1]]
        blocks = (first + torch.arange(width, device=cache.device)).clamp_(
            max=block_tables.shape[1] - 1
        )
        at = first * block_size + torch.arange(width * block_size, device=cache.device)
        groups.append(
            _Group(
                rows=torch.tensor([starts[index] for index in members], device=cache.device),
                blocks=block_tables[members].gather(1, blocks).flatten(),
                mask=_group_mask(at, context_lens[members, None], window, cache),
            )
        )
    chunks = [
        _Chunk(
            starts[index],
            count,
            contexts[index] - firsts[index] * block_size,
            block_tables[index, firsts[index] : ends[index]],
        )
        for index, count in enumerate(counts)
        if count > 1
    ]
    gathered = [part.blocks for part in groups] + [part.blocks for part in chunks]
    room = max(len(blocks) for blocks in gathered)
    return AttentionPlan(
        groups=tuple(groups),
        chunks=tuple(chunks),
        gathered=cache.new_empty(2, room, cache[0].numel()),
        causal=_causal_mask(chunks, cache, window),
        window=window,
    )


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: AttentionPlan,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Tensor:
    """Causal attention of each sequence's last tokens to all its tokens so far.

    Args:
        query: (rows, heads, head_dim).
        key_cache: (blocks, block_size, kv_heads, head_dim), the present rows already written.
        value_cache: as ``key_cache``.
        plan: of this step.
        scale: of scores; by default ``head_dim ** -0.5``.
        soft_cap: scores become ``cap × tanh(score / cap)``.

    Returns:
        (rows, heads, head_dim).
    """
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    kv_heads = key_cache.shape[2]
    scale = query.shape[2] ** -0.5 if scale is None else scale
    for group in plan.groups:
        keys, values = _gather(key_cache, value_cache, group.blocks, plan.gathered)
        count, _, _, context = group.mask.shape
        shape = (count, context, kv_heads, -1)
        attended = _attend(
            query.index_select(0, group.rows).view(count, kv_heads, -1, query.shape[2]),
            keys.view(shape).transpose(1, 2),
            values.view(shape).transpose(1, 2),
            group.mask,
            scale=scale,
            soft_cap=soft_cap,
        )
        out.index_copy_(0, group.rows, attended.reshape(count, *query.shape[1:]))
    for chunk in plan.chunks:
        keys, values = _gather(key_cache, value_cache, chunk.blocks, plan.gathered)
        # K/V head first, then the query heads that share it, which see the same memory.
        shape = (-1, kv_heads, 1, query.shape[2])
        shared = (-1, query.shape[1] // kv_heads, -1, -1)
        keys = keys.view(shape).permute(1, 2, 0, 3).expand(shared)
        values = values.view(shape).permute(1, 2, 0, 3).expand(shared)
        for first in range(0, chunk.count, _QUERY_TILE):
            rows = min(_QUERY_TILE, chunk.count - first)
            seen = chunk.context - chunk.count + first + rows
            hidden = 0 if plan.window is None else max(0, seen - rows + 1 - plan.window)
            tile = slice(chunk.start + first, chunk.start + first + rows)
            attended = _attend(
                query[tile].view(rows, kv_heads, -1, query.shape[2]).permute(1, 2, 0, 3),
                keys[:, :, hidden:seen],
                values[:, :, hidden:seen],
                _cut_mask(plan.causal, rows, hidden, seen),
                scale=scale,
                soft_cap=soft_cap,
            )
            out[tile] = attended.permute(2, 0, 1, 3).flatten(1, 2)
    return out


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    scale: float,
    soft_cap: float | None,
) -> Tensor:
    if soft_cap is None:
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scale)
    scores = (query.float() @ keys.float().transpose(2, 3)).mul_(scale / soft_cap)
    weights = torch.softmax(scores.tanh_().mul_(soft_cap).add_(mask), -1)
    return (weights @ values.float()).to(query.dtype)


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


def _first_blocks(
    contexts: list[int], counts: list[int], block_size: int, window: int | None
) -> list[int]:
    """Of each sequence, the first that any of its present rows sees."""
    if window is None:
        return [0] * len(contexts)
    return [
        max(0, context - count + 1 - window) // block_size
        for context, count in zip(contexts, counts, strict=True)
    ]


def _group_mask(at: Tensor, contexts: Tensor, window: int | None, cache: Tensor) -> Tensor:
    """Of keys at positions ``at`` (n, keys) for the last of ``contexts`` (n, 1) tokens."""
    hidden = at >= contexts
    if window is not None:
        hidden |= at < contexts - window
    return cache.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[:, None, None]


def _causal_mask(chunks: list[_Chunk], cache: Tensor, window: int | None) -> Tensor:
    tile = min(_QUERY_TILE, max((chunk.count for chunk in chunks), default=0))
    longest = max((chunk.context for chunk in chunks), default=0)
    mask = cache.new_zeros(tile, longest + tile)
    mask[:, longest:] = cache.new_full((tile, tile), -torch.inf).triu_(1)
    if window is not None:
        mask += torch.full_like(mask, -torch.inf).tril_(longest - window)
    return mask


def _cut_mask(causal: Tensor, rows: int, hidden: int, seen: int) -> Tensor:
    """Of ``rows`` queries at the end of ``seen`` tokens, without the first ``hidden`` of these."""
    longest = causal.shape[1] - causal.shape[0]
    return causal[:rows, longest + rows - seen + hidden : longest + rows]


def _gather(
    key_cache: Tensor, value_cache: Tensor, blocks: Tensor, room: Tensor
) -> tuple[Tensor, Tensor]:
    """Copies of the K and V ``blocks``, each (blocks, elements), in ``room``."""
    keys, values = room[0, : len(blocks)], room[1, : len(blocks)]
    torch.index_select(key_cache.flatten(1), 0, blocks, out=keys)
    torch.index_select(value_cache.flatten(1), 0, blocks, out=values)
    return keys, values
