"""Which rank of a tensor-parallel group has which part of a model.

Owns the cutting: heads and MLP columns of every layer, rows of the vocabulary. Knows canonical
names of weights, no files and no tensors; imports no torch, for it is asked before a start, too.

    rows       q, k, v, gate, up: a rank computes its own heads and columns
    columns    o, down: of those it makes its share of what all ranks together add
    vocabulary the embedding and the head: logits are gathered
    whole      norms, the router of experts

A KV head stays with its query heads. Where there are more ranks than KV heads, neighbours hold the
same one, and share its queries. Where KV heads do not come out even, ranks with fewer of them take
more columns of the MLPs, so that each has about as many weights to read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from chairlift.cluster.errors import ConfigError
from chairlift.cluster.model_spec import ModelSpec

__all__ = ["WHOLE", "Cut", "Share", "check_degree", "cut_of", "degrees", "share_of", "share_spec"]

_LARGE_UNIT, _UNIT = 256, 32
"""Columns that stay together: as many as the blocks of most quantised encodings have weights."""
_MANY_UNITS = 8
_VOCABULARY_UNIT = 16


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank has; ranges are of the whole model's numbers."""

    rank: int
    size: int
    heads: range
    kv_heads: range
    columns: range
    expert_columns: range
    vocabulary: range


@dataclass(frozen=True, slots=True)
class Cut:
    """A part of a tensor: of its rows (axis 0), or of a matrix's columns (axis 1)."""

    axis: int
    start: int
    stop: int


WHOLE = None
"""In place of a ``Share``: all of the model."""


def degrees(spec: ModelSpec) -> list[int]:
    """How many ranks a model can have: up to its KV heads, and then what divides their queries."""
    group = spec.num_heads // spec.num_kv_heads
    more = [spec.num_kv_heads * ways for ways in range(2, group + 1) if group % ways == 0]
    return [*range(1, spec.num_kv_heads + 1), *more]


def check_degree(spec: ModelSpec, size: int) -> None:
    """Raises ConfigError when the model cannot be cut for so many ranks."""
    possible = degrees(spec)
    if size not in possible:
        raise ConfigError(
            f"workers.tensor_parallel: {spec.name} has {spec.num_heads} attention heads over "
            f"{spec.num_kv_heads} KV heads, which {size} ranks cannot share; "
            f"possible are {', '.join(map(str, possible))}"
        )


def share_of(spec: ModelSpec, rank: int, size: int) -> Share:
    """The part of one rank.

    Raises:
        ConfigError: the model cannot be cut for so many.
    """
    check_degree(spec, size)
    group = spec.num_heads // spec.num_kv_heads
    ranks = range(size)
    if size <= spec.num_kv_heads:
        kv = [_even(spec.num_kv_heads, each, size) for each in ranks]
        heads = [range(each.start * group, each.stop * group) for each in kv]
    else:
        ways = size // spec.num_kv_heads
        kv = [range(each // ways, each // ways + 1) for each in ranks]
        heads = [_even(spec.num_heads, each, size) for each in ranks]
    # Weights of a head with its part of K and V, for each column of the MLP.
    of_a_head = [2 * len(h) + 2 * len(k) for h, k in zip(heads, kv, strict=True)]
    attention = [spec.head_dim * each / 3 for each in of_a_head]
    experts = spec.experts
    return Share(
        rank=rank,
        size=size,
        heads=heads[rank],
        kv_heads=kv[rank],
        columns=_balanced(spec.intermediate_size, attention, rank),
        expert_columns=(
            _balanced(experts.intermediate_size, [0.0] * size, rank) if experts else range(0)
        ),
        vocabulary=_even(spec.vocab_size, rank, size, _VOCABULARY_UNIT),
    )


def share_spec(spec: ModelSpec, share: Share | None) -> ModelSpec:
    """The model as one rank sees it: with its own heads, and so its own KV cache."""
    if share is WHOLE:
        return spec
    return replace(spec, num_heads=len(share.heads), num_kv_heads=len(share.kv_heads))


def cut_of(spec: ModelSpec, share: Share | None, name: str) -> Cut | None:
    """What of a tensor the rank reads; None for all of it.

    Args:
        spec: the whole model.
        share: of the rank.
        name: canonical, as ``cluster.model_files.weight_shapes`` has it.
    """
    if share is WHOLE or share.size == 1:
        return None
    if name in ("model.embed_tokens.weight", "lm_head.weight"):
        return Cut(0, share.vocabulary.start, share.vocabulary.stop)
    match = re.search(r"(experts\.\d+\.)?([qkvo]|gate|up|down)_proj\.(weight|bias)$", name)
    if match is None:
        return None
    expert, projection, kind = match.groups()
    if projection in "qkvo":
        which, each = share.kv_heads if projection in "kv" else share.heads, spec.head_dim
    else:
        which, each = share.expert_columns if expert else share.columns, 1
    if projection in ("o", "down"):
        # Its bias is added once: by rank 0 (see ``workers.decoder_weights``).
        return None if kind == "bias" else Cut(1, which.start * each, which.stop * each)
    return Cut(0, which.start * each, which.stop * each)


def _even(count: int, rank: int, size: int, unit: int = 1) -> range:
    """One of ``size`` neighbouring parts, of whole units, as equal as these allow."""
    units = -(-count // unit)
    # The first ones have more, if any: they end where the others would begin a unit later.
    start, stop = (-(-units * each // size) * unit for each in (rank, rank + 1))
    return range(min(start, count), min(stop, count))


def _balanced(columns: int, besides: list[float], rank: int) -> range:
    """Columns of the rank, so that with what each has besides all have about as much.

    ``besides``: of each rank, in columns.
    """
    size = len(besides)
    large = columns % _LARGE_UNIT == 0 and columns >= size * _MANY_UNITS * _LARGE_UNIT
    unit = _LARGE_UNIT if large else _UNIT
    if columns < 2 * size * unit:
        unit = 1
    mean = (columns + sum(besides)) / size
    ends = [0]
    had = 0.0
    for index, own in enumerate(besides):
        had += max(mean - own, 0.0)
        left = (size - index - 1) * unit  # everybody gets something
        end = max(round(had / unit) * unit, ends[-1] + unit)
        ends.append(min(end, columns - left))
    ends[-1] = columns
    return range(ends[rank], ends[rank + 1])
