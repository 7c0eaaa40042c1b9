"""Translation of frames, the messages that carry tokens: a table of columns, a row a sequence.

Owns the byte layout of frames. What few rows have (log probabilities, cached tokens) stands in
tables of its own that name the row, so the others pay nothing for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise
from operator import attrgetter
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

_load_fields = attrgetter(*LoadReport._fields)
"""The message's fields have the same names."""


def frame_to_wire(
    deltas: Sequence[Delta], load: LoadReport, blocks: BlockEvents | None = None
) -> pb.Frame:
    message = pb.Frame(
        load=_load_to_wire(load), blocks=None if blocks is None else _blocks_to_wire(blocks)
    )
    if not deltas:
        return message
    handles, tokens, finishes, cached, logprobs, prompt_logprobs = zip(*deltas, strict=True)
    message.handles.extend(handles)
    message.counts.extend(map(len, tokens))
    message.tokens.extend(chain.from_iterable(tokens))
    message.finishes.extend([finish or 0 for finish in finishes])
    if any(cached):
        message.cached.extend(
            pb.Cached(row=row, tokens=number) for row, number in enumerate(cached) if number
        )
    for prompt, column in ((False, logprobs), (True, prompt_logprobs)):
        if any(column):
            message.logprobs.extend(
                _logprobs_to_wire(row, values, prompt)
                for row, values in enumerate(column)
                if values
            )
    return message


def frame_from_wire(message: pb.Frame) -> Frame:
    """Raises ValueError when the columns contradict each other."""
    counts = message.counts
    if not len(message.handles) == len(counts) == len(message.finishes):
        raise ValueError("frame: columns of different lengths")
    finishes = [FinishReason(finish) if finish else None for finish in message.finishes]
    deltas = list(map(Delta, message.handles, _split(message.tokens, counts), finishes))
    if message.cached or message.logprobs:
        for row, extras in _extras(message).items():
            if row >= len(deltas):
                raise ValueError(f"frame: there is no row {row}")
            deltas[row] = deltas[row]._replace(**extras)
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
    return pb.Load(**load._asdict())


def _load_from_wire(message: pb.Load) -> LoadReport:
    return LoadReport(*_load_fields(message))


def _split(items: Iterable[T], counts: Iterable[int]) -> Iterator[tuple[T, ...]]:
    """Parts of these lengths. Raises ValueError when the counts do not add up."""
    whole, counts = tuple(items), tuple(counts)
    if counts.count(1) == len(counts) == len(whole):  # most frames: a token a row
        return zip(whole, strict=True)
    bounds = list(accumulate(counts, initial=0))
    if bounds[-1] != len(whole):
        raise ValueError("frame: counts do not add up")
    return (whole[start:stop] for start, stop in pairwise(bounds))
