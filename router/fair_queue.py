"""Who waits in a router, and who goes next: by priority class, tenant's service, and arrival.

Owns the order and the sums over what waits. It knows neither replicas nor what a request is, and
reads no clock. What is served is charged to the ``VirtualCounters`` by others, who tell them before
whom they chose.

    first:        work that was under way elsewhere, outside fairness
    INTERACTIVE:  tenant → its line      next = the least (effective class, counter, order)
    STANDARD:     tenant → its line             over the heads of all lines
    BATCH:        tenant → its line
    late:         (tenant, class) → its line

An item rises one level for each ``promote_after_s`` that it has waited, so nobody starves in a
low one. The head of a line has waited longest, so the heads are all that ``next`` has to look at.
Late are those that were demoted. While others wait too, one turn in ``LATE_TURN`` is theirs, so
that they get somewhere however many newcomers there are; and they rise as others do, only from
further below, so that what has waited three times as long is of the first class again, and older
than any newcomer.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from chairlift.cluster.fairness import VirtualCounters
from chairlift.cluster.protocol import Priority
from chairlift.router.queue_lines import FIRST, Entry, Line, LineBook, LineKey, Queued

__all__ = ["FairQueue", "Queued"]

T = TypeVar("T", bound=Queued)

LATE = max(Priority) + 1
"""The level below all classes."""

LATE_TURN = 2
"""Of so many turns one is for the late, so that they wait no more than twice as long as in order of
arrival. With one in five, a crowd's first comers waited for 25 s of the 2.6 s that they wait now
(``evaluation.guard_crowd``, 160 clients), and no more of the others were in time."""


@dataclass(slots=True)
class _Part:
    """Of what waits: so much of one tenant's goes before a newcomer, all from this level on."""

    level: int
    weight: float
    sequences: int = 0
    tokens: int = 0

    def add(self, other: _Part | Line[T]) -> None:
        self.sequences += other.sequences
        self.tokens += other.tokens


class FairQueue(Generic[T]):
    """What waits in one router.

    Attributes:
        fair: without it, tenants do not matter, only class and arrival.
        num_sequences, num_tokens: of all items together.
    """

    _STALE_ALARMS = 64
    """Alarms of items that left early and are kept at most, beyond one for each that waits."""

    def __init__(self, counters: VirtualCounters, *, fair: bool, promote_after_s: float) -> None:
        """Start empty."""
        self.fair = fair
        self.num_sequences = 0
        self.num_tokens = 0
        self._counters = counters
        self._promote_after_s = promote_after_s
        self._entries: dict[int, Entry[T]] = {}
        self._first: Line[T] = Line(level=FIRST)
        self._lines: dict[LineKey, Line[T]] = {}
        self._newest = self._oldest = 0
        self._num_late = 0
        self._passed_over = 0
        self._book: LineBook[T] = LineBook(self._lines, counters, promote_after_s)
        self._alarms: list[tuple[float, int, Entry[T]]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: object) -> bool:
        return id(item) in self._entries

    def push(self, item: T) -> None:
        """Queue a newcomer, whose tenant is lifted if nothing of it waits in the class."""
        waits = any(
            (item.tenant, item.priority, level) in self._lines for level in (item.priority, LATE)
        )
        self._counters.arrive(item.tenant, item.weight, item.priority, waits=waits)
        self._newest += 1
        self._add(item, self._newest)

    def push_front(self, item: T) -> None:
        """Put back what a replica refused, before the others of its tenant and class."""
        self._oldest -= 1
        self._add(item, self._oldest)

    def push_first(self, item: T) -> None:
        """Queue work that was under way: it goes before everything but others of its kind."""
        self._newest += 1
        self._add(item, self._newest, self._first)

    def next(self, now: float) -> T | None:
        """Who is served next; it stays queued."""
        return next(self.heads(now), None)

    def heads(self, now: float) -> Iterator[T]:
        """Who is next of each tenant and class, in the order in which they are served.

        Where the first can be served nowhere, perhaps the second one can. Without fairness, nobody
        goes before the first. To be asked for again once anything has changed.
        """
        if self._first.entries:
            yield self._first.head.item
        first: T | None = None
        if self.fair and not self._num_late:
            if (least := self._book.least(now)) is None:
                return
            first = least.head.item
            yield first
        turn = bool(self._num_late) and self._passed_over >= LATE_TURN - 1
        value = self._counters.value if self.fair else _nothing
        ranks = _ranked(self._lines.values(), value, now, self._promote_after_s, turn=turn)
        for item in ranks[: None if self.fair else 1]:
            if item is not first:
                yield item

    def remove(self, item: T, *, served: bool = False) -> None:
        """It is ``served``, or nobody wants it any more. Raises KeyError if it is not queued."""
        entry = self._entries.pop(id(item))
        entry.waits = False
        line = entry.line
        late = line.level == LATE
        self._book.take(entry)
        if served and self._num_late:
            self._passed_over = 0 if late else self._passed_over + 1
        self._num_late -= late
        self.num_sequences -= item.n
        self.num_tokens -= item.num_tokens
        if line is not self._first and not line.entries:
            del self._lines[line.key]
        if len(self._alarms) > 2 * len(self._entries) + self._STALE_ALARMS:
            self._alarms = [alarm for alarm in self._alarms if alarm[2].waits]
            heapq.heapify(self._alarms)

    def expired(self, now: float) -> list[T]:
        """Remove and return the items whose time is up, the earliest first."""
        items = []
        while self._alarms and self._alarms[0][0] <= now:
            entry = heapq.heappop(self._alarms)[2]
            if entry.waits:
                self.remove(entry.item)
                items.append(entry.item)
        return items

    def demote(self, now: float, after_s: float) -> None:
        """Let who has waited longer than ``after_s`` seconds go after all who have not, for now.

        They keep their order, and rise again from below; tenants are charged as before.
        """
        for line in [line for line in self._lines.values() if line.level != LATE]:
            if not (moved := line.before(now - after_s)):
                continue
            new: Line[T] = Line(line.tenant, line.priority, LATE)
            late = self._lines.setdefault(new.key, new)
            late.weight = line.weight
            for entry in moved:
                self._book.take(entry)
                self._book.put(entry, late)
            self._num_late += len(moved)
            if not line.entries:
                del self._lines[line.key]

    def ahead(self, priority: Priority, tenant: str, weight: float, now: float) -> tuple[int, int]:
        """Sequences and tokens that would be served before a newcomer.

        Under weighted sharing, while the newcomer's tenant has its own line and the newcomer
        served, each other tenant of the class has its share, as far as its line goes. Of late ones
        those count that have risen.
        """
        sequences, tokens = float(self._first.sequences), float(self._first.tokens)
        if self.fair and not self._num_late:
            own = self._lines.get((tenant, priority, priority))
            more = self._book.sums.ahead(priority, own, weight)
            return _whole(sequences + more[0]), _whole(tokens + more[1])
        peers: dict[str, _Part] = {}
        for line in self._lines.values():
            late = line.level == LATE
            part = _risen(line, priority, now, self._promote_after_s) if late else line
            if part.level > priority:
                continue
            if self.fair and part.level == priority:
                peers.setdefault(line.tenant, _Part(priority, line.weight)).add(part)
            else:
                sequences, tokens = sequences + part.sequences, tokens + part.tokens
        turns = (1 + (peers[tenant].sequences if tenant in peers else 0)) / weight
        for name, peer in peers.items():
            share = 1.0 if name == tenant else min(1.0, turns * peer.weight / peer.sequences)
            sequences += share * peer.sequences
            tokens += share * peer.tokens
        return _whole(sequences), _whole(tokens)

    def backlogged(self) -> dict[str, T]:
        """Tenants that wait for their share, each with the item of theirs that has waited longest.

        Work that was under way does not count.
        """
        oldest: dict[str, T] = {}
        for line in self._lines.values():
            item = line.head.item
            other = oldest.setdefault(line.tenant, item)
            if item.queued_at < other.queued_at:
                oldest[line.tenant] = item
        return oldest

    def queued_of(self, tenant: str) -> int:
        """Items of a tenant, as ``backlogged`` counts them."""
        keys = ((tenant, each, level) for each in Priority for level in (each, LATE))
        return sum(len(self._lines[key].entries) for key in keys if key in self._lines)

    def _add(self, item: T, order: int, line: Line[T] | None = None) -> None:
        if item in self:
            raise ValueError("it is queued already")
        if line is None:
            new: Line[T] = Line(item.tenant, item.priority, item.priority)
            line = self._lines.setdefault(new.key, new)
        entry = Entry(item, order, line)
        self._entries[id(item)] = entry
        self._book.put(entry, line, item.weight)
        self.num_sequences += item.n
        self.num_tokens += item.num_tokens
        heapq.heappush(self._alarms, (item.expires_at, order, entry))


def _risen(line: Line[T], priority: Priority, now: float, promote_after_s: float) -> _Part:
    """Of a late line, those that have risen to this class or beyond."""
    part = _Part(line.head.level(now, promote_after_s), line.weight)
    for entry in line.entries.values() if part.level <= priority else ():
        if entry.level(now, promote_after_s) > priority:
            break
        part.sequences += entry.item.n
        part.tokens += entry.item.num_tokens
    return part


def _ranked(
    lines: Iterable[Line[T]],
    value: Callable[[str], float],
    now: float,
    promote_after_s: float,
    *,
    turn: bool,
) -> list[T]:
    """Heads in order: by effective class, counter, and order; ``turn``: it is that of the late."""
    ranks = []
    for line in lines:
        head = line.head
        level = head.level(now, promote_after_s)
        if line.level == LATE and turn:
            level = line.priority - LATE  # before all classes, and by class among the late
        ranks.append((level, value(line.tenant), head.order, head.item))
    ranks.sort(key=_rank)
    return [item for *_, item in ranks]


def _nothing(_: str) -> float:
    """What a tenant was served, where that does not matter."""
    return 0.0


def _whole(number: float) -> int:
    """So many at least, but for what rounding has added."""
    return math.ceil(number - 1e-9)


def _rank(head: tuple[int, float, int, object]) -> tuple[int, float, int]:
    """Items themselves cannot be compared."""
    return head[:3]
