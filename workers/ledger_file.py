"""Reads a ledger file: header and records, each checked before it is believed.

Owns how damage is found and named. A file that ends within a record is damaged as well; the
records before that place are given out first.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chairlift.cluster.errors import LedgerError
from chairlift.workers.ledger_codec import read_record
from chairlift.workers.ledger_format import FRAME, unpack_header
from chairlift.workers.ledger_records import Header, Record

__all__ = ["LedgerFile", "open_ledger", "parse_ledger"]


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """A ledger in memory; iterating gives its records in order, and LedgerError where damaged."""

    name: str
    header: Header
    content: bytes
    records_at: int

    def __iter__(self) -> Iterator[Record]:
        at, end = self.records_at, len(self.content)
        while at < end:
            try:
                size, checksum = FRAME.unpack_from(self.content, at)
            except struct.error:
                raise self._damaged(at, "the file ends within a record's frame") from None
            payload = self.content[at + FRAME.size : at + FRAME.size + size]
            if len(payload) != size:
                raise self._damaged(at, f"{size} bytes are due, {len(payload)} are left")
            if zlib.crc32(payload) != checksum:
                raise self._damaged(at, "the checksum is wrong")
            try:
                record = read_record(payload)
            except LedgerError as error:
                raise self._damaged(at, str(error)) from None
            yield record
            at += FRAME.size + size

    def _damaged(self, at: int, what: str) -> LedgerError:
        return LedgerError(f"{self.name} is damaged at byte {at}: {what}")


def open_ledger(path: Path) -> LedgerFile:
    """Read a file. Raises LedgerError when it cannot be read, or is no ledger."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LedgerError(f"cannot read {path}: {error.strerror}") from None
    return parse_ledger(content, str(path))


def parse_ledger(content: bytes, name: str = "the ledger") -> LedgerFile:
    try:
        header, records_at = unpack_header(content)
    except LedgerError as error:
        raise LedgerError(f"{name} {error}") from None
    return LedgerFile(name, header, content, records_at)
