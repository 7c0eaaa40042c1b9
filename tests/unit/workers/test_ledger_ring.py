import itertools
import struct
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.workers.ledger_format import FRAME, frame
from chairlift.workers.ledger_ring import Ring


@given(
    capacity=st.integers(16, 80),
    sizes=st.lists(st.integers(0, 90), max_size=60),
)
def test_the_newest_records_are_kept_whole_and_within_the_capacity(
    capacity: int, sizes: list[int]
) -> None:
    ring = Ring(capacity)
    kept: list[bytes] = []
    for number, size in enumerate(sizes):
        record = frame(bytes([number]) * size)
        fits = len(record) <= capacity
        assert ring.append(record) is fits
        if fits:
            kept.append(record)
            while sum(map(len, kept)) > capacity:
                kept.pop(0)
        assert ring.content() == b"".join(kept)
        assert ring.size == len(ring.content()) <= capacity


def test_memory_does_not_grow() -> None:
    ring = Ring(1000)
    for number in range(5000):
        ring.append(frame(bytes(number % 300)))
    assert len(ring._memory) == 1000
    assert ring.size > 1000 - 300 - FRAME.size


@given(
    capacity=st.integers(16, 80),
    sizes=st.lists(st.integers(0, 30), max_size=40),
    since=st.integers(0, 1500),
)
def test_what_is_read_from_a_position_on_begins_there_or_at_the_oldest_record(
    capacity: int, sizes: list[int], since: int
) -> None:
    ring = Ring(capacity)
    for number, size in enumerate(sizes):
        ring.append(frame(bytes([number]) * size))
    whole = ring.content()
    count = max(0, min(len(whole), ring.end - since))
    assert b"".join(ring.parts(since)) == whole[len(whole) - count :]


def test_a_reader_in_another_thread_gets_whole_records_without_a_gap() -> None:
    ring, stop = Ring(3000), threading.Event()

    def write() -> None:
        for number in itertools.count():
            ring.append(frame(struct.pack("<I", number) + bytes(number % 97)))
            if stop.is_set():
                return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        newest = 0
        for _ in range(300):
            numbers = list(_numbers(b"".join(ring.parts())))
            assert (
                numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
            )
            newest = max([newest, *numbers])
        assert newest > 100
    finally:
        stop.set()
        writer.join()


def test_what_is_overwritten_while_it_is_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer comes in between any two pieces."""
    monkeypatch.setattr("chairlift.workers.ledger_ring.PART", 64)
    ring = Interrupted(1000)
    for number in range(40):
        ring.append(frame(struct.pack("<I", number) + bytes(20)))
    first, *_ = _numbers(ring.content())
    ring.reads = True
    numbers = list(_numbers(b"".join(ring.parts())))
    assert numbers == list(range(numbers[0], 40))
    assert numbers[0] > first  # of those that were there at the beginning, some have gone


class Interrupted(Ring):
    """Writes a record at every fourth look at its capacity; a reader looks at each piece."""

    reads = False
    looks = 0

    def __getattribute__(self, name: str) -> Any:
        if name == "capacity" and self.reads:
            self.looks += 1
            if self.looks % 4 == 0:
                self.reads = False
                self.append(frame(struct.pack("<I", 40 + self.looks) + bytes(20)))
                self.reads = True
        return super().__getattribute__(name)


def _numbers(content: bytes) -> Iterator[int]:
    at = 0
    while at < len(content):
        size, checksum = FRAME.unpack_from(content, at)
        payload = content[at + FRAME.size : at + FRAME.size + size]
        assert zlib.crc32(payload) == checksum
        yield struct.unpack_from("<I", payload)[0]
        at += FRAME.size + size
