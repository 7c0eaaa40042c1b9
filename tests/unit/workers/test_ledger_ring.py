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
