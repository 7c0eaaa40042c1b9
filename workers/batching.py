"""Who of the waiting gets the free seats: three policies behind one interface.

Owns the rules of admission. A policy is a pure function of the waiting sequences and the room;
it changes nothing and knows neither pool nor runner. ``Controls.batching`` picks one, live.

    continuous      a seat is given away as soon as it is free
    static          all seats are given away together, when the last sequence of a batch has ended
    static-sorted   like static, but a batch is made of sequences of similar length

No policy skips a sequence that does not fit to take one that stands behind it, so nobody starves.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from chairlift.cluster.protocol import Batching
from chairlift.workers.sequence import Sequence

__all__ = ["BatchingPolicy", "Continuous", "Room", "Static", "StaticSorted", "policy_for"]


@dataclass(frozen=True, slots=True)
class Room:
    """What there is to give away.

    Attributes:
        running: sequences that hold a seat.
        seats: free ones.
        blocks: free, and not spoken for by the known tokens of running sequences.
        tokens: of the step's budget, what the pending tokens of running sequences leave over.
        block_size: positions of a block.
    """

    running: int
    seats: int
    blocks: int
    tokens: int
    block_size: int

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


class BatchingPolicy(Protocol):
    """One way to give seats away."""

    def choose(self, waiting: Collection[Sequence], room: Room) -> list[Sequence]:
        """The sequences to admit now, in this order; ``waiting`` is in order of service.

        With nothing running and something waiting, at least one is chosen.
        """
        ...


class Continuous:
    """Admit in order of service while there are seats, blocks and tokens.

    A sequence needs blocks for the tokens that it has and the one that they yield. It is not
    admitted when the next step has no token left for it: it would hold a seat and stand still.
    """

    def choose(self, waiting: Collection[Sequence], room: Room) -> list[Sequence]:
        chosen: list[Sequence] = []
        blocks, tokens = room.blocks, room.tokens
        for sequence in itertools.islice(waiting, max(room.seats, 0)):
            blocks -= room.blocks_for(sequence.num_tokens + 1)
            if blocks < 0 or tokens <= 0:
                break
            tokens -= sequence.num_pending
            chosen.append(sequence)
        return chosen


class Static:
    """Admit nothing while anything runs, then a whole batch in order of service.

    Each sequence needs blocks for its greatest length, so a batch is never preempted.
    """

    def choose(self, waiting: Collection[Sequence], room: Room) -> list[Sequence]:
        return [] if room.running else _whole(waiting, room)


class StaticSorted:
    """Like ``Static``, with batches of similar length, so that fewer seats stay empty.

    Of all windows over the waiting in order of length that hold the first in order of service,
    the one whose lengths differ least.
    """

    def choose(self, waiting: Collection[Sequence], room: Room) -> list[Sequence]:
        if room.running or not waiting:
            return []
        first = next(iter(waiting))
        ranked = sorted(waiting, key=lambda sequence: (sequence.max_total, sequence.arrival))
        position, size = ranked.index(first), min(room.seats, len(ranked))

        def spread(start: int) -> int:
            return ranked[start + size - 1].max_total - ranked[start].max_total

        starts = range(max(0, position - size + 1), min(position, len(ranked) - size) + 1)
        start = min(starts, key=spread)
        window = ranked[start : start + size]
        # The first in order of service leads, for it must fit whatever its length.
        window.remove(first)
        return _whole([first, *window], room)


def policy_for(batching: Batching) -> BatchingPolicy:
    match batching:
        case Batching.CONTINUOUS:
            return Continuous()
        case Batching.STATIC:
            return Static()
        case Batching.STATIC_SORTED:
            return StaticSorted()


def _whole(candidates: Iterable[Sequence], room: Room) -> list[Sequence]:
    """As many from the front as there are seats, and blocks for their greatest length."""
    chosen: list[Sequence] = []
    blocks = room.blocks
    for sequence in itertools.islice(candidates, room.seats):
        blocks -= room.blocks_for(sequence.max_total)
        if blocks < 0:
            break
        chosen.append(sequence)
    return chosen
