"""A fixed piece of memory that keeps the newest records, whole.

Owns where a record stands and which ones had to go. It knows of a record only that it begins with
a frame that says how long it is.

    positions count all bytes ever written; position p stands at p mod capacity

    … overwritten │ oldest record │ … │ newest record │
                  └ start                             └ end      end - start ≤ capacity

One thread writes. Any thread may read, without a lock and so without ever holding up the writer,
be it in the middle of a step or stuck in one: a reader takes its copy first and then drops from it
what was overwritten meanwhile. That is enough because ``start`` moves on before a byte is
overwritten, and ``end`` only after a record stands whole.
"""

from __future__ import annotations

import time

from chairlift.workers.ledger_format import FRAME

__all__ = ["Ring"]

PART = 256 * 1024
"""Bytes that a reader copies in one go, while no other thread of the process runs Python."""


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

    @property
    def end(self) -> int:
        """The position after the newest record."""
        return self._end

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
        return b"".join(self.parts())

    def parts(self, since: int = 0, pause_s: float = 0.0) -> list[bytes]:
        """The same, from position ``since`` on, in pieces of no particular size; any thread.

        Args:
            since: a position at which a record begins.
            pause_s: sleep so long after each piece; without, a thread that wants to run Python
                meanwhile may wait for all of them.
        """
        end = self._end
        begin = at = max(self._start, min(since, end))
        parts: list[bytes] = []
        with memoryview(self._memory) as memory:
            while at < end:
                place = at % self.capacity
                size = min(PART, end - at, self.capacity - place)
                parts.append(bytes(memory[place : place + size]))
                at += size
                if pause_s:
                    time.sleep(pause_s)
        return _without(parts, self._start - begin)

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


def _without(parts: list[bytes], count: int) -> list[bytes]:
    """All but the first ``count`` bytes."""
    for index, part in enumerate(parts):
        if count < len(part):
            return [part[max(count, 0) :], *parts[index + 1 :]]
        count -= len(part)
    return []
