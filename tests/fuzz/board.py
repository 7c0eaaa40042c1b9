"""What a child has done so far, in memory that it shares with its parent.

So counts, and the input at which it died, outlive it, whatever it died of.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import astuple, dataclass
from pathlib import Path

__all__ = ["Board", "Counts"]

MAX_INPUT = 8 * 1024**2

_COUNTS = struct.Struct("<QQQdQ")
_SIZE = struct.Struct("<Q")


@dataclass
class Counts:
    """Inputs tried, refused and accepted; the slowest one in CPU seconds; growth in bytes."""

    tried: int = 0
    refused: int = 0
    accepted: int = 0
    slowest_s: float = 0.0
    growth: int = 0

    def add(self, other: Counts) -> None:
        self.tried += other.tried
        self.refused += other.refused
        self.accepted += other.accepted
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.growth = max(self.growth, other.growth)


class Board:
    """Counts, and the input that is being fed; written by the child, read by the parent."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(b"")
            with path.open("r+b") as file:
                file.truncate(_COUNTS.size + _SIZE.size + MAX_INPUT)
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 0)

    @property
    def counts(self) -> Counts:
        return Counts(*_COUNTS.unpack_from(self._memory))

    @counts.setter
    def counts(self, counts: Counts) -> None:
        _COUNTS.pack_into(self._memory, 0, *astuple(counts))

    @property
    def current(self) -> bytes:
        (size,) = _SIZE.unpack_from(self._memory, _COUNTS.size)
        begin = _COUNTS.size + _SIZE.size
        return self._memory[begin : begin + size]

    @current.setter
    def current(self, data: bytes) -> None:
        data = data[:MAX_INPUT]
        _SIZE.pack_into(self._memory, _COUNTS.size, len(data))
        begin = _COUNTS.size + _SIZE.size
        self._memory[begin : begin + len(data)] = data

    def close(self) -> None:
        self._memory.close()
