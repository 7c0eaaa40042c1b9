"""Who of the waiting gets the free seats: three policies behind one interface.

Owns the rules of admission. A policy is a pure function of the waiting sequences and the room;
it changes nothing and knows neither pool nor runner. ``Controls.batching`` picks one, live.

    continuous      a seat is given away as soon as it is free
    static          all seats are given away together, when the last sequence of a batch has ended
    static-sorted   like static, but a batch is made of sequences of similar length

No policy skips a sequence that does not fit to take one that stands behind it, so nobody starves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from chairlift.cluster.protocol import Batching
from chairlift.workers.decisions import Reason
from chairlift.workers.sequence import Sequence

__all__ = [
    "BatchingPolicy",
    "Choice",
    "Continuous",
    "Found",
    "Room",
    "Static",
    "StaticSorted",
    "policy_for",
]


@dataclass(frozen=True, slots=True)
class Found:
    """What the prefix cache holds of a waiting sequence.

    Attributes:
        tokens: leading ones that need not be computed.
        held: blocks of these that somebody uses anyway, so that sharing them takes no room.
    """

    tokens: int = 0
    held: int = 0


def _find_nothing(_: Sequence) -> Found:
    return Found()


@dataclass(frozen=True, slots=True)
class Room:
    """What there is to give away.

    Attributes:
        running: sequences that hold a seat.
        seats: free ones.
        blocks: free, and not spoken for by the known tokens of running sequences.
        tokens: of the step's budget, what the pending tokens of running sequences leave over.
        block_size: positions of a block.
        find: looks a waiting sequence up in the prefix cache.
        reserve: each sequence is given room for its greatest length; ``blocks`` are what is left
            of that, and may be less than none.
    """

    running: int
    seats: int
    blocks: int
    tokens: int
    block_size: int
    find: Callable[[Sequence], Found] = _find_nothing
    reserve: bool = False

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class Choice:
    """Whom to admit, in this order, and why not one more; None when all are admitted."""

    admitted: tuple[Sequence, ...]
    stopped_by: Reason | None = None


class BatchingPolicy(Protocol):
    """One way to give seats away."""

    def choose(self, waiting: Collection[Sequence], room: Room) -> Choice:
        """Choose among ``waiting``, which is in order of service and not empty.

        With nothing running, at least one is chosen.
        """
        ...


class Continuous:
    """Admit in order of service while there are seats, blocks and tokens.

    A sequence needs blocks for the tokens that it has and the one that they yield, or for its
    greatest length where room is reserved, so that nobody is preempted later. It is not admitted
    when the next step has no token left for it: it would hold a seat and stand still.
    """

    def choose(self, waiting: Collection[Sequence], room: Room) -> Choice:
        chosen: list[Sequence] = []
        blocks, tokens = room.blocks, room.tokens
        for sequence in waiting:
            if len(chosen) >= room.seats:
                return Choice(tuple(chosen), Reason.MAX_SEQUENCES)
            if tokens <= 0:
                return Choice(tuple(chosen), Reason.BUDGET)
            found = room.find(sequence)
            length = sequence.max_total if room.reserve else sequence.num_tokens + 1
            blocks -= room.blocks_for(length) - found.held
            if blocks < 0:
                return Choice(tuple(chosen), Reason.NO_BLOCKS)
            tokens -= sequence.num_tokens - found.tokens
            chosen.append(sequence)
        return Choice(tuple(chosen))


class Static:
    """Admit nothing while anything runs, then a whole batch in order of service.

    Each sequence needs blocks for its greatest length, so a batch is never preempted.
    """

    def choose(self, waiting: Collection[Sequence], room: Room) -> Choice:
        return Choice((), Reason.BATCH) if room.running else _whole(waiting, room)


class StaticSorted:
    """Like ``Static``, with batches of similar length, so that fewer seats stay empty.

    Of all windows over the waiting in order of length that hold the first in order of service,
    the one whose lengths differ least.
    """

    def choose(self, waiting: Collection[Sequence], room: Room) -> Choice:
        if room.running:
            return Choice((), Reason.BATCH)
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
        choice = _whole([first, *window], room)
        if choice.stopped_by is None and size < len(ranked):
            return Choice(choice.admitted, Reason.MAX_SEQUENCES)
        return choice


def policy_for(batching: Batching) -> BatchingPolicy:
    match batching:
        case Batching.CONTINUOUS:
            return Continuous()
        case Batching.STATIC:
            return Static()
        case Batching.STATIC_SORTED:
            return StaticSorted()


def _whole(candidates: Iterable[Sequence], room: Room) -> Choice:
    """As many from the front as there are seats, and blocks for their greatest length."""
    chosen: list[Sequence] = []
    blocks = room.blocks
    for sequence in candidates:
        if len(chosen) >= room.seats:
            return Choice(tuple(chosen), Reason.MAX_SEQUENCES)
        blocks -= room.blocks_for(sequence.max_total)
        if blocks < 0:
            return Choice(tuple(chosen), Reason.NO_BLOCKS)
        chosen.append(sequence)
    return Choice(tuple(chosen))
