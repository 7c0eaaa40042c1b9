"""A fixed piece of memory that keeps the newest records, whole.

Owns where a record stands and which ones had to go. It knows of a record only that it begins with
a frame that says how long it is.

    positions count all bytes ever written; position p stands at p mod capacity

    … overwritten │ oldest record │ … │ newest record │
                  └ start                             └ end      end - start ≤ capacity
"""

from __future__ import annotations

from chairlift.workers.ledger_format import FRAME

__all__ = ["Ring"]


class Ring:
    """Framed records in ``capacity`` bytes; the oldest make room for new ones."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._memory = bytearray(capacity)
        self._start = 0
        self._end = 0

    @property
    def size(self) -> int:
        """Bytes of the records that are kept."""
        return self._end - self._start

    def append(self, record: bytes) -> bool:
        """Keep a record; False, and nothing has changed, when it is longer than the ring."""
        size = len(record)
        if size > self.capacity:
            return False
        while self._end + size > self._start + self.capacity:
            self._drop_oldest()
        at = self._end % self.capacity
        fits = min(size, self.capacity - at)
        self._memory[at : at + fits] = record[:fits]
        if fits < size:
            self._memory[: size - fits] = record[fits:]
        self._end += size
        return True

    def content(self) -> bytes:
        """A copy of all records, oldest first."""
        return self._read(self._start, self.size)

    def _drop_oldest(self) -> None:
        at = self._start % self.capacity
        if at + FRAME.size <= self.capacity:
            payload_size, _ = FRAME.unpack_from(self._memory, at)
        else:
            payload_size, _ = FRAME.unpack(self._read(self._start, FRAME.size))
        self._start += FRAME.size + payload_size

    def _read(self, position: int, size: int) -> bytes:
        at = position % self.capacity
        first = bytes(self._memory[at : at + size])
        return first + bytes(self._memory[: size - len(first)])
