"""Sequences without a seat, in order of service.

Owns that order, and how an arrival changes the tenants' counters. It knows neither seats nor
blocks, and charges nobody: that is the scheduler's, who serves.

    class ─► tenant with the least counter ─► of its sequences: who ran before, then who came first

The first in line is looked at in every step, thousands of times a second, and found without a look
at all the others: lines stand in a heap by the rank of their heads. A rank only grows while its
line stands, as its tenant is charged and its heads leave; so an outdated entry is too low, comes
up too early, and is put right then. What would lower a rank puts a new entry in.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import chain

from chairlift.cluster.fairness import VirtualCounters, service
from chairlift.workers.sequence import Sequence

__all__ = ["WaitingQueue"]

_Key = tuple[int, str]
"""Class and tenant: names a line."""
_Rank = tuple[int, float, bool, int]
"""Class, counter, and the head's place in its line."""


class WaitingQueue:
    """The waiting sequences of one engine.

    Args:
        counters: what tenants were served; may only grow but for ``arrive``.
        fair: whether counters matter; else sequences of a class stand in one line.
        input_of: prompt tokens that a sequence would be charged for if it were admitted now.
    """

    def __init__(
        self, counters: VirtualCounters, fair: bool, input_of: Callable[[Sequence], int]
    ) -> None:
        self.num_tokens = 0
        self._counters = counters
        self._fair = fair
        self._input_of = input_of
        self._lines: dict[_Key, list[Sequence]] = {}
        self._heap: list[tuple[_Rank, _Key]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __contains__(self, sequence: object) -> bool:
        return any(sequence in line for line in self._lines.values())

    def __iter__(self) -> Iterator[Sequence]:
        """In order of service, as if each were admitted, and charged for, before the next one."""
        _first(self._heap, self._rank)  # what is put right here stays so
        heap = self._heap.copy()
        taken: Counter[_Key] = Counter()
        ahead: defaultdict[str, float] = defaultdict(float)

        def rank(key: _Key) -> _Rank | None:
            return self._rank(key, taken[key], ahead[key[1]])

        while (key := _first(heap, rank)) is not None:
            sequence = self._lines[key][taken[key]]
            yield sequence
            taken[key] += 1
            if self._fair:
                ahead[key[1]] += service(self._input_of(sequence), 0)

    def sequences(self) -> Iterator[Sequence]:
        """All of them, in no order that means anything."""
        return chain.from_iterable(self._lines.values())

    def arrive(self, sequence: Sequence) -> None:
        """A new one comes; its tenant saved up no service while it asked for none."""
        tenant, key = sequence.tenant, _key(sequence)
        before = self._counters.value(tenant)
        self._counters.arrive(tenant, sequence.weight, sequence.priority, waits=key in self._lines)
        if self._counters.value(tenant) < before:  # it weighs more than it did
            self._rank_all()
        self.insert(sequence)

    def insert(self, sequence: Sequence) -> None:
        """Put it in its place; its tenant has arrived before."""
        key = _key(sequence)
        line = self._lines.setdefault(key, [])
        insort(line, sequence, key=_place)
        self._size += 1
        self.num_tokens += sequence.num_tokens
        if line[0] is sequence:
            heapq.heappush(self._heap, (self._rank_of(sequence), key))
            if len(self._heap) > 2 * len(self._lines) + 8:  # mostly outdated entries
                self._rank_all()

    def remove(self, sequence: Sequence) -> None:
        """Raises KeyError when it does not wait."""
        key = _key(sequence)
        line = self._lines[key]
        index = bisect_left(line, _place(sequence), key=_place)
        if index == len(line) or line[index] is not sequence:
            raise KeyError(sequence.key)
        del line[index]
        if not line:
            del self._lines[key]
        self._size -= 1
        self.num_tokens -= sequence.num_tokens

    def set_fair(self, fair: bool) -> None:
        """Let counters matter from now on, or no more."""
        if fair != self._fair:
            self._fair = fair
            self._rank_all()

    def value(self, tenant: str, ahead: float = 0.0) -> float:
        """By which tenants are told apart; it is higher the more one was served."""
        return self._counters.value(tenant, ahead) if self._fair else 0.0

    def _rank(self, key: _Key, position: int = 0, ahead: float = 0.0) -> _Rank | None:
        """Of the sequence at that place in a line; None when there is none."""
        line = self._lines.get(key)
        if line is None or position >= len(line):
            return None
        return self._rank_of(line[position], ahead)

    def _rank_of(self, sequence: Sequence, ahead: float = 0.0) -> _Rank:
        return sequence.priority, self.value(sequence.tenant, ahead), *_place(sequence)

    def _rank_all(self) -> None:
        self._heap = [(self._rank_of(line[0]), key) for key, line in self._lines.items()]
        heapq.heapify(self._heap)


def _key(sequence: Sequence) -> _Key:
    return sequence.priority, sequence.tenant


def _place(sequence: Sequence) -> tuple[bool, int]:
    """Within its line."""
    return not sequence.resumes, sequence.arrival


def _first(heap: list[tuple[_Rank, _Key]], rank: Callable[[_Key], _Rank | None]) -> _Key | None:
    """The line that is next, once the entries above it are put right; None when none is left."""
    while heap:
        known, key = heap[0]
        now = rank(key)
        if now == known:
            return key
        if now is None:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (now, key))
    return None
