"""Translation of frames, the messages that carry tokens: a table of columns, a row a sequence.

Owns the byte layout of frames. What few rows have (log probabilities, cached tokens) stands in
tables of its own that name the row, so the others pay nothing for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, TypeVar

from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import (
    BlockEvents,
    Delta,
    FinishReason,
    Frame,
    LoadReport,
    TokenLogprobs,
)

__all__ = ["frame_from_wire", "frame_to_wire"]

T = TypeVar("T")


def frame_to_wire(
    deltas: Sequence[Delta], load: LoadReport, blocks: BlockEvents | None = None
) -> pb.Frame:
    return pb.Frame(
        handles=[delta.handle for delta in deltas],
        counts=[len(delta.tokens) for delta in deltas],
        tokens=_flatten(delta.tokens for delta in deltas),
        finishes=[delta.finish or 0 for delta in deltas],
        load=_load_to_wire(load),
        cached=[
            pb.Cached(row=row, tokens=delta.cached_tokens)
            for row, delta in enumerate(deltas)
            if delta.cached_tokens
        ],
        logprobs=[
            _logprobs_to_wire(row, logprobs, prompt)
            for row, delta in enumerate(deltas)
            for prompt, logprobs in ((False, delta.logprobs), (True, delta.prompt_logprobs))
            if logprobs
        ],
        blocks=None if blocks is None else _blocks_to_wire(blocks),
    )


def frame_from_wire(message: pb.Frame) -> Frame:
    """Raises ValueError when the columns contradict each other."""
    counts = message.counts
    if not len(message.handles) == len(counts) == len(message.finishes):
        raise ValueError("frame: columns of different lengths")
    deltas = [
        Delta(handle, tokens, FinishReason(finish) if finish else None)
        for handle, tokens, finish in zip(
            message.handles, _split(message.tokens, counts), message.finishes, strict=True
        )
    ]
    for row, extras in _extras(message).items():
        if row >= len(deltas):
            raise ValueError(f"frame: there is no row {row}")
        deltas[row] = replace(deltas[row], **extras)
    blocks = _blocks_from_wire(message.blocks) if message.HasField("blocks") else None
    return Frame(tuple(deltas), _load_from_wire(message.load), blocks)


def _extras(message: pb.Frame) -> dict[int, dict[str, Any]]:
    """What some rows have, by row and by the name of the Delta's field."""
    extras: dict[int, dict[str, Any]] = defaultdict(dict)
    for cached in message.cached:
        extras[cached.row]["cached_tokens"] = cached.tokens
    for logprobs in message.logprobs:
        name = "prompt_logprobs" if logprobs.prompt else "logprobs"
        extras[logprobs.row][name] = _logprobs_from_wire(logprobs)
    return extras


def _logprobs_to_wire(row: int, logprobs: Sequence[TokenLogprobs], prompt: bool) -> pb.Logprobs:
    tops = [each.top for each in logprobs]
    return pb.Logprobs(
        row=row,
        prompt=prompt,
        chosen=[each.chosen for each in logprobs],
        counts=[len(top) for top in tops],
        top_tokens=[token for top in tops for token, _ in top],
        top_values=[value for top in tops for _, value in top],
    )


def _logprobs_from_wire(message: pb.Logprobs) -> tuple[TokenLogprobs, ...]:
    tokens = _split(message.top_tokens, message.counts)
    values = _split(message.top_values, message.counts)
    return tuple(
        TokenLogprobs(chosen, tuple(zip(top_tokens, top_values, strict=True)))
        for chosen, top_tokens, top_values in zip(message.chosen, tokens, values, strict=True)
    )


def _blocks_to_wire(blocks: BlockEvents) -> pb.Blocks:
    return pb.Blocks(reset=blocks.reset, added=blocks.added, removed=blocks.removed)


def _blocks_from_wire(message: pb.Blocks) -> BlockEvents:
    return BlockEvents(message.reset, tuple(message.added), tuple(message.removed))


def _load_to_wire(load: LoadReport) -> pb.Load:
    return pb.Load(
        step=load.step,
        running=load.running,
        waiting=load.waiting,
        waiting_tokens=load.waiting_tokens,
        blocks_used=load.blocks_used,
        blocks_total=load.blocks_total,
        preemptions=load.preemptions,
        tokens_computed=load.tokens_computed,
        tokens_generated=load.tokens_generated,
        cache_queries=load.cache_queries,
        cache_hits=load.cache_hits,
        stamp=load.stamp,
        step_age_s=load.step_age_s,
        routers=load.routers,
        draining=load.draining,
        freeing=load.freeing,
    )


def _load_from_wire(message: pb.Load) -> LoadReport:
    return LoadReport(
        step=message.step,
        running=message.running,
        waiting=message.waiting,
        waiting_tokens=message.waiting_tokens,
        blocks_used=message.blocks_used,
        blocks_total=message.blocks_total,
        preemptions=message.preemptions,
        tokens_computed=message.tokens_computed,
        tokens_generated=message.tokens_generated,
        cache_queries=message.cache_queries,
        cache_hits=message.cache_hits,
        stamp=message.stamp,
        step_age_s=message.step_age_s,
        routers=message.routers,
        draining=message.draining,
        freeing=message.freeing,
    )


def _flatten(parts: Iterable[tuple[T, ...]]) -> list[T]:
    return [item for part in parts for item in part]


def _split(items: Iterable[T], counts: Iterable[int]) -> Iterator[tuple[T, ...]]:
    """The inverse of ``_flatten``. Raises ValueError when the counts do not add up."""
    whole = tuple(items)
    bounds = list(accumulate(counts, initial=0))
    if bounds[-1] != len(whole):
        raise ValueError("frame: counts do not add up")
    return (whole[start:stop] for start, stop in pairwise(bounds))
