"""The bytes of a ledger: file header, frames, and the part of a record that any stage has.

Owns the layout and its version. What a stage adds is ``ledger_codec``'s.

    file    magic 8 | layout u16 | bytes of the header u32 | its CRC-32 u32 | header, JSON
            then records, one after the other
    record  bytes of the payload u32 | its CRC-32 u32 | payload
    payload kind u8 | fields of the kind, little-endian, without padding

The header and the snapshots are JSON, for they are written once in thousands of steps and hold
whatever the scheduler's state consists of; all else is fixed structs and columns of integers.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence as Seq
from typing import Any

from chairlift.cluster.errors import LedgerError
from chairlift.cluster.protocol import Batching, Controls, Priority
from chairlift.workers.ledger_records import Header, Stage, StageRecord

__all__ = [
    "FRAME",
    "GAP",
    "NOTE",
    "SNAPSHOT",
    "STAGE",
    "Cursor",
    "column",
    "controls_of",
    "controls_state",
    "frame",
    "pack_header",
    "read_head",
    "text_field",
    "unpack_header",
]

MAGIC = b"CHLEDGER"
LAYOUT = 3
"""Raised by one with every change to the layout; a reader reads its own only."""

MAX_BLOCKS = 1 << 22
"""Of a replica; a replay keeps an account of each."""

SNAPSHOT, GAP, NOTE = 6, 7, 8
"""Kinds of records besides the five stages."""

FILE_HEAD = struct.Struct("<8sHII")
FRAME = struct.Struct("<II")
STAGE = struct.Struct("<BQQdffIIIQ")
"""Kind, step, Controls version, at, seconds, CPU seconds, running, waiting, blocks, tokens."""

_COUNT = struct.Struct("<I")


def frame(payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def column(code: str, values: Seq[int]) -> bytes:
    """Unsigned integers of one width (``I``: 32 bits, ``Q``: 64 bits), one after the other."""
    return struct.pack(f"<{len(values)}{code}", *values)


def text_field(text: str) -> bytes:
    encoded = text.encode("utf-8", "replace")
    return _COUNT.pack(len(encoded)) + encoded


def controls_state(controls: Controls) -> dict[str, Any]:
    """Controls as JSON can hold them."""
    return {
        "version": controls.version,
        "batching": controls.batching.value,
        "token_budget": controls.token_budget,
        "max_sequences": controls.max_sequences,
        "by_person": controls.by_person,
        "fair": controls.fair,
        "reserve": controls.reserve,
        "hedging": controls.hedging,
        "affinity": controls.affinity,
        "lowest": controls.lowest.value,
        "demote_late": controls.demote_late,
        "admit": controls.admit,
        "reason": controls.reason,
    }


def controls_of(state: dict[str, Any]) -> Controls:
    modes = {"batching": Batching(state["batching"]), "lowest": Priority(state["lowest"])}
    return Controls(**(state | modes))


def pack_header(header: Header) -> bytes:
    """The first bytes of a file."""
    fields = {name: getattr(header, name) for name in Header.__dataclass_fields__}
    fields["controls"] = controls_state(header.controls)
    text = json.dumps(fields).encode()
    return FILE_HEAD.pack(MAGIC, LAYOUT, len(text), zlib.crc32(text)) + text


def unpack_header(content: bytes) -> tuple[Header, int]:
    """The header, and where the records begin. Raises LedgerError."""
    if len(content) < FILE_HEAD.size or content[: len(MAGIC)] != MAGIC:
        raise LedgerError("is no ledger: it does not begin with the ledger's magic bytes")
    _, layout, size, checksum = FILE_HEAD.unpack_from(content)
    if layout != LAYOUT:
        raise LedgerError(f"has layout {layout}; this program reads layout {LAYOUT}")
    text = content[FILE_HEAD.size : FILE_HEAD.size + size]
    if len(text) != size or zlib.crc32(text) != checksum:
        raise LedgerError("is damaged: the header's checksum is wrong")
    try:
        fields = json.loads(text)
        fields["controls"] = controls_of(fields["controls"])
        fields["eos_token_ids"] = tuple(fields["eos_token_ids"])
        header = Header(**fields)
        if not 0 < header.num_blocks <= MAX_BLOCKS or header.block_size < 1:
            raise ValueError(f"{header.num_blocks} blocks of {header.block_size}")
        return header, FILE_HEAD.size + size
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise LedgerError(f"has a header that says something else: {error}") from None


class Cursor:
    """Reads the fields of one payload in turn; struct.error when it ends too early."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._at = 0

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._payload, self._at)
        self._at += layout.size
        return values

    def count(self) -> int:
        (value,) = self.take(_COUNT)
        return int(value)

    def column(self, code: str, length: int) -> tuple[int, ...]:
        width = 4 if code == "I" else 8
        values = struct.unpack_from(f"<{length}{code}", self._payload, self._at)
        self._at += length * width
        return values

    def text(self) -> str:
        return self.raw(self.count()).decode()

    def raw(self, size: int) -> bytes:
        if self._at + size > len(self._payload):
            raise struct.error(f"{size} bytes are due at {self._at}")
        taken = self._payload[self._at : self._at + size]
        self._at += size
        return taken

    def rest(self) -> bytes:
        return self.raw(len(self._payload) - self._at)

    def end(self) -> None:
        """struct.error unless everything was read."""
        if self._at != len(self._payload):
            raise struct.error(f"{len(self._payload) - self._at} bytes are left over")


def read_head(cursor: Cursor) -> StageRecord:
    stage, *fields = cursor.take(STAGE)
    return StageRecord(Stage(stage), *fields)
