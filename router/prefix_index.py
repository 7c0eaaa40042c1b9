"""What a replica's prefix cache holds, as far as one router knows.

Owns a set of short block names, kept by the events that the replica's frames carry. It is good
for guessing where a prompt is cached and for nothing else: a name may be out of date or, with a
chance of 2⁻⁶⁴, another's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from chairlift.cluster.protocol import BlockEvents

__all__ = ["PrefixIndex"]

MAX_NAMES = 1 << 18
EXPECTED_S = 5.0
"""How long a prompt that was sent counts as cached without a word of it from the replica."""


class PrefixIndex:
    """The names that one replica holds, and those that it will hold soon.

    What is expected and does not come is forgotten when the next prompt is sent after its time.
    """

    def __init__(self, limit: int = MAX_NAMES) -> None:
        """Start with nothing known.

        Args:
            limit: names at most, of either kind; with more than a replica can have, all that is
                known has become doubtful, and is forgotten.
        """
        self._limit = limit
        self._held: set[int] = set()
        self._expected: OrderedDict[int, float] = OrderedDict()

    def __len__(self) -> int:
        """Names that the replica is known to hold."""
        return len(self._held)

    def apply(self, events: BlockEvents) -> None:
        """Take in what has changed at the replica."""
        if events.reset:
            self._held.clear()
        self._held.difference_update(events.removed)
        self._held.update(events.added)
        for name in (*events.removed, *events.added):
            self._expected.pop(name, None)
        if len(self._held) > self._limit:
            self._held.clear()

    def expect(self, names: Sequence[int], now: float) -> None:
        """A prompt of these blocks was sent, so that those after it can follow it there."""
        for name in names:
            self._expected[name] = now + EXPECTED_S
            self._expected.move_to_end(name)
        while self._expected:
            oldest = next(iter(self._expected))
            if self._expected[oldest] > now and len(self._expected) <= self._limit:
                break
            del self._expected[oldest]

    def match(self, names: Sequence[int]) -> int:
        """How many of the names, from the first on, are there, or are about to be."""
        for index, name in enumerate(names):
            if name not in self._held and name not in self._expected:
                return index
        return len(names)
