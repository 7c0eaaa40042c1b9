"""What each stage adds to a record, as bytes and back.

The packing half runs in the engine's loop, so it makes columns and no object per token; the
reading half serves replay, summary and explanation. Replay packs what it decides anew with the
same functions and reads it back, so the two sides of a comparison went the same way.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterable
from typing import Any

from chairlift.cluster.errors import LedgerError
from chairlift.cluster.protocol import Batching, Controls, FinishReason, Priority, SamplingParams
from chairlift.workers.decisions import Reason, TurnedDown
from chairlift.workers.intake import Drained
from chairlift.workers.ledger_format import (
    GAP,
    NOTE,
    SNAPSHOT,
    Cursor,
    column,
    read_head,
    text_field,
)
from chairlift.workers.ledger_records import (
    Advanced,
    Endings,
    Gap,
    Inputs,
    Note,
    Plan,
    PlannedSlice,
    Queued,
    Record,
    Refill,
    Retired,
    Snapshot,
    Stage,
)
from chairlift.workers.scheduler import Outcome
from chairlift.workers.sequence import Admission, Sequence, SequenceKey, StepPlan

__all__ = [
    "UNKNOWN",
    "pack_advance",
    "pack_endings",
    "pack_gap",
    "pack_inputs",
    "pack_note",
    "pack_plan",
    "pack_refill",
    "pack_snapshot",
    "read_endings",
    "read_inputs",
    "read_plan",
    "read_record",
    "read_refill",
]

UNKNOWN = 0xFFFFFFFF
"""Stands for a prediction that nobody could make."""

MAX_STATE = 64 * 1024**2
"""Bytes of a snapshot's text; ten million tokens. What is packed tightly is not believed."""

_INPUTS = struct.Struct("<BIII")  # flags, arrivals, cancelled, left
_CONTROLS = struct.Struct("<QBIIBBd")  # version, batching, budget, seats, flags, lowest, admit
_ARRIVAL = struct.Struct("<QQQIIIIIIQBdB")  # see _pack_arrival
_ENDING = struct.Struct("<QQB")
_TURNED_DOWN = struct.Struct("<QQBI")
_PLAN = struct.Struct("<IIII")  # slices, preempted, turned down, digest of the block tables
_ADVANCE = struct.Struct("<BfQI")  # failed, predicted seconds, KV read, tokens
_REFILL = struct.Struct("<II")  # admitted, turned down
_AT = struct.Struct("<d")
_HAS_CONTROLS, _HAND_OVER = 1, 2
_FLAGS = ("by_person", "fair", "reserve", "hedging", "affinity", "demote_late")
"""Of Controls, the first one the lowest bit."""
_SAME_TOKENS, _IGNORE_EOS, _PROMPT_LOGPROBS = 1, 2, 4
_BATCHING = tuple(Batching)
_NO_INPUTS = _INPUTS.pack(0, 0, 0, 0)
_NO_ENDINGS = column("I", (0,))


def pack_inputs(drained: Drained) -> bytes:
    """All that the scheduler is told from outside."""
    controls, arrivals = drained.controls, drained.arrivals
    cancelled, left = drained.cancelled, sorted(drained.left)
    flags = _HAS_CONTROLS * (controls is not None) + _HAND_OVER * drained.hand_over
    if not (flags or arrivals or cancelled or left):
        return _NO_INPUTS
    parts = [_INPUTS.pack(flags, len(arrivals), len(cancelled), len(left))]
    if controls is not None:
        parts.append(_pack_controls(controls))
    previous: Sequence | None = None
    for sequence in arrivals:
        parts.extend(_pack_arrival(sequence, previous))
        previous = sequence
    parts.append(column("Q", [number for key in cancelled for number in (key.origin, key.handle)]))
    parts.append(column("Q", left))
    return b"".join(parts)


def pack_endings(outcomes: Iterable[Outcome]) -> bytes:
    ended = [(o.key, o.finish) for o in outcomes if o.finish is not None]
    if not ended:
        return _NO_ENDINGS
    packed = [_ENDING.pack(key.origin, key.handle, finish) for key, finish in ended]
    return b"".join([column("I", (len(packed),)), *packed])


def pack_plan(plan: StepPlan) -> bytes:
    slices, preempted, turned_down = plan.slices, plan.preempted, plan.turned_down
    n = len(slices)
    arrivals = [piece.sequence.arrival for piece in slices]
    spans = [piece.start for piece in slices]
    spans += [piece.count for piece in slices]
    tables = [len(piece.sequence.blocks) for piece in slices]
    tables += [piece.sequence.blocks[-1] for piece in slices]
    digest = zlib.crc32(column("I", tables))
    packed = (
        _PLAN.pack(n, len(preempted), len(turned_down), digest)
        + column("Q", arrivals)
        + column("I", spans)
    )
    if preempted or turned_down:
        packed += column("Q", [sequence.arrival for sequence in preempted])
        packed += _pack_turned_down(turned_down)
    return packed


def pack_advance(tokens: list[int] | None, predicted_s: float | None, kv_read: int) -> bytes:
    """``tokens`` is None when the runner failed."""
    predicted = math.nan if predicted_s is None else predicted_s
    sampled = tokens or []
    return _ADVANCE.pack(tokens is None, predicted, kv_read, len(sampled)) + column("I", sampled)


def pack_refill(admission: Admission, remaining: list[tuple[int, int] | None]) -> bytes:
    """``remaining``: p50 and p90 of the output expected of each admitted sequence."""
    admitted, turned_down = admission.admitted, admission.turned_down
    packed = _REFILL.pack(len(admitted), len(turned_down))
    if admitted:
        quantiles = [number for pair in remaining for number in pair or (UNKNOWN, UNKNOWN)]
        packed += column("Q", [sequence.arrival for sequence in admitted])
        packed += column("I", quantiles)
    return packed + _pack_turned_down(turned_down)


def pack_snapshot(step: int, state: dict[str, Any]) -> bytes:
    text = zlib.compress(json.dumps(state, separators=(",", ":")).encode(), 1)
    return bytes((SNAPSHOT,)) + column("Q", (step,)) + text


def pack_gap(step: int, size: int) -> bytes:
    return bytes((GAP,)) + column("Q", (step, size))


def pack_note(step: int, at: float, text: str) -> bytes:
    return bytes((NOTE,)) + column("Q", (step,)) + _AT.pack(at) + text_field(text)


def read_record(payload: bytes) -> Record:
    """Raises LedgerError for a payload that no version of the layout's writer has made."""
    try:
        cursor = Cursor(payload)
        record = _read(payload[0], cursor)
        cursor.end()
        return record
    except (IndexError, KeyError, RecursionError, ValueError, struct.error, zlib.error) as error:
        raise LedgerError(f"holds a record that makes no sense: {error}") from None


def _read(kind: int, cursor: Cursor) -> Record:
    if kind <= Stage.REFILL:
        return _read_stage(cursor)
    cursor.raw(1)
    (step,) = cursor.column("Q", 1)
    if kind == SNAPSHOT:
        return Snapshot(step, _read_state(cursor.rest()))
    if kind == GAP:
        return Gap(step, *cursor.column("Q", 1))
    if kind == NOTE:
        (at,) = cursor.take(_AT)
        return Note(step, at, cursor.text())
    raise ValueError(f"kind {kind} is unknown")


def _read_state(packed: bytes) -> dict[str, Any]:
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(packed, MAX_STATE + 1)
    if len(text) > MAX_STATE or not unpacking.eof or unpacking.unused_data:
        raise ValueError(f"a snapshot is cut off, or longer than {MAX_STATE} bytes")
    state = json.loads(text)
    if not isinstance(state, dict):
        raise ValueError("a snapshot holds no object")
    return state


def _read_stage(cursor: Cursor) -> Queued | Plan | Advanced | Retired | Refill:
    head = read_head(cursor)
    match head.stage:
        case Stage.QUEUE:
            return Queued(head, read_inputs(cursor), read_endings(cursor))
        case Stage.PLAN:
            return Plan(head, *read_plan(cursor))
        case Stage.ADVANCE:
            failed, predicted, kv_read, n = cursor.take(_ADVANCE)
            known = None if math.isnan(predicted) else predicted
            return Advanced(head, bool(failed), known, kv_read, cursor.column("I", n))
        case Stage.RETIRE:
            return Retired(head, read_inputs(cursor), read_endings(cursor))
        case Stage.REFILL:
            return Refill(head, *read_refill(cursor))


def read_plan(
    cursor: Cursor,
) -> tuple[tuple[PlannedSlice, ...], tuple[int, ...], tuple[TurnedDown, ...], int]:
    n, num_preempted, num_turned_down, digest = cursor.take(_PLAN)
    arrivals = cursor.column("Q", n)
    starts, counts = cursor.column("I", n), cursor.column("I", n)
    slices = tuple(map(PlannedSlice, arrivals, starts, counts))
    preempted = cursor.column("Q", num_preempted)
    return slices, preempted, _read_turned_down(cursor, num_turned_down), digest


def read_refill(
    cursor: Cursor,
) -> tuple[tuple[int, ...], tuple[TurnedDown, ...], tuple[tuple[int, int] | None, ...]]:
    n, num_turned_down = cursor.take(_REFILL)
    admitted = cursor.column("Q", n)
    quantiles = cursor.column("I", 2 * n)
    pairs = zip(quantiles[::2], quantiles[1::2], strict=True)
    remaining = tuple(None if UNKNOWN in pair else pair for pair in pairs)
    return admitted, _read_turned_down(cursor, num_turned_down), remaining


def read_endings(cursor: Cursor) -> Endings:
    return tuple(
        (SequenceKey(origin, handle), FinishReason(finish))
        for origin, handle, finish in (cursor.take(_ENDING) for _ in range(cursor.count()))
    )


def _pack_controls(controls: Controls) -> bytes:
    numbers = _CONTROLS.pack(
        controls.version,
        _BATCHING.index(controls.batching),
        controls.token_budget,
        controls.max_sequences,
        sum(getattr(controls, name) << bit for bit, name in enumerate(_FLAGS)),
        controls.lowest,
        controls.admit,
    )
    return numbers + text_field(controls.reason)


def _read_controls(cursor: Cursor) -> Controls:
    version, batching, token_budget, max_sequences, flags, lowest, admit = cursor.take(_CONTROLS)
    return Controls(
        version,
        _BATCHING[batching],
        token_budget,
        max_sequences,
        lowest=Priority(lowest),
        admit=admit,
        reason=cursor.text(),
        **{name: bool(flags >> bit & 1) for bit, name in enumerate(_FLAGS)},
    )


def _pack_arrival(sequence: Sequence, previous: Sequence | None) -> list[bytes]:
    """A sequence as it came. Further choices of a request do not repeat its tokens."""
    sampling = sequence.sampling
    same = previous is not None and previous.tokens == sequence.tokens
    flags = (
        _SAME_TOKENS * same
        + _IGNORE_EOS * sampling.ignore_eos
        + _PROMPT_LOGPROBS * (sampling.prompt_logprobs is not None)
    )
    numbers = _ARRIVAL.pack(
        sequence.key.origin,
        sequence.key.handle,
        sequence.arrival,
        sequence.choice,
        0 if same else len(sequence.tokens),
        sequence.num_prompt,
        sampling.max_tokens,
        sampling.min_tokens,
        len(sampling.stop_token_ids),
        sampling.seed,
        sequence.priority,
        sequence.weight,
        flags,
    )
    texts = [text_field(t) for t in (sequence.request_id, sequence.tenant, sequence.cache_salt)]
    stops = column("I", sampling.stop_token_ids)
    return [numbers, *texts, stops, b"" if same else column("I", sequence.tokens)]


def read_inputs(cursor: Cursor) -> Inputs:
    flags, num_arrivals, num_cancelled, num_left = cursor.take(_INPUTS)
    controls = _read_controls(cursor) if flags & _HAS_CONTROLS else None
    arrivals: list[Sequence] = []
    for _ in range(num_arrivals):
        arrivals.append(_read_arrival(cursor, arrivals))
    numbers = cursor.column("Q", 2 * num_cancelled)
    cancelled = tuple(map(SequenceKey, numbers[::2], numbers[1::2]))
    left = cursor.column("Q", num_left)
    return Inputs(controls, tuple(arrivals), cancelled, left, bool(flags & _HAND_OVER))


def _read_arrival(cursor: Cursor, before: list[Sequence]) -> Sequence:
    origin, handle, arrival, choice, num_tokens, num_prompt, *rest = cursor.take(_ARRIVAL)
    max_tokens, min_tokens, num_stops, seed, priority, weight, flags = rest
    request_id, tenant, salt = cursor.text(), cursor.text(), cursor.text()
    stops = cursor.column("I", num_stops)
    tokens = list(before[-1].tokens if flags & _SAME_TOKENS else cursor.column("I", num_tokens))
    sampling = SamplingParams(
        max_tokens=max_tokens,
        seed=seed,
        stop_token_ids=stops,
        ignore_eos=bool(flags & _IGNORE_EOS),
        min_tokens=min_tokens,
        prompt_logprobs=0 if flags & _PROMPT_LOGPROBS else None,
    )
    return Sequence(
        key=SequenceKey(origin, handle),
        request_id=request_id,
        tenant=tenant,
        choice=choice,
        sampling=sampling,
        arrival=arrival,
        tokens=tokens,
        num_prompt=num_prompt,
        cache_salt=salt,
        priority=Priority(priority),
        weight=weight,
    )


def _pack_turned_down(turned_down: tuple[TurnedDown, ...]) -> bytes:
    return b"".join(
        _TURNED_DOWN.pack(each.key.origin, each.key.handle, each.reason, each.count)
        for each in turned_down
    )


def _read_turned_down(cursor: Cursor, count: int) -> tuple[TurnedDown, ...]:
    return tuple(
        TurnedDown(SequenceKey(origin, handle), Reason(reason), passed_over)
        for origin, handle, reason, passed_over in (cursor.take(_TURNED_DOWN) for _ in range(count))
    )
