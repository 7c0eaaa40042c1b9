"""Who waits in a router, and who goes next: by priority class, tenant's service, and arrival.

Owns the order and the sums over what waits. It knows neither replicas nor what a request is, and
reads no clock. What is served is charged to the ``VirtualCounters`` by others, who tell them before
whom they chose.

    first:        work that was under way elsewhere, outside fairness
    INTERACTIVE:  tenant → its line      next = the least (effective class, counter, order)
    STANDARD:     tenant → its line             over the heads of all lines
    BATCH:        tenant → its line

An item rises one class for each ``promote_after_s`` that it has waited, so nobody starves in a
low one. The head of a line has waited longest, so the heads are all that ``next`` has to look at.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from chairlift.cluster.fairness import VirtualCounters
from chairlift.cluster.protocol import Priority

__all__ = ["FairQueue", "Queued"]


class Queued(Protocol):
    """What can wait; nothing of this changes while it does.

    Attributes:
        tenant, weight, priority: as in ``protocol.Request``.
        n: sequences.
        num_tokens: to be computed before it decodes.
        queued_at, expires_at: seconds of the clock that ``now`` is read from.
    """

    @property
    def tenant(self) -> str: ...

    @property
    def weight(self) -> float: ...

    @property
    def priority(self) -> Priority: ...

    @property
    def n(self) -> int: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def queued_at(self) -> float: ...

    @property
    def expires_at(self) -> float: ...


T = TypeVar("T", bound=Queued)


@dataclass(slots=True)
class _Line(Generic[T]):
    """Items in order, by identity, with sums over them."""

    tenant: str = ""
    priority: Priority = Priority.INTERACTIVE
    weight: float = 1.0
    entries: OrderedDict[int, _Entry[T]] = field(default_factory=OrderedDict)
    sequences: int = 0
    tokens: int = 0

    @property
    def head(self) -> _Entry[T]:
        return next(iter(self.entries.values()))


@dataclass(slots=True, eq=False)
class _Entry(Generic[T]):
    """An item in its place; ``order`` grows with arrival and is negative for what came back."""

    item: T
    order: int
    line: _Line[T]
    waits: bool = True


class FairQueue(Generic[T]):
    """What waits in one router.

    Attributes:
        num_sequences, num_tokens: of all items together.
    """

    _STALE_ALARMS = 64
    """Alarms of items that left early and are kept at most, beyond one for each that waits."""

    def __init__(self, counters: VirtualCounters, *, fair: bool, promote_after_s: float) -> None:
        """Start empty; without ``fair``, tenants do not matter, only class and arrival."""
        self.num_sequences = 0
        self.num_tokens = 0
        self._counters = counters
        self._fair = fair
        self._promote_after_s = promote_after_s
        self._entries: dict[int, _Entry[T]] = {}
        self._first: _Line[T] = _Line()
        self._lines: dict[Priority, dict[str, _Line[T]]] = {each: {} for each in Priority}
        self._newest = self._oldest = 0
        self._alarms: list[tuple[float, int, _Entry[T]]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: object) -> bool:
        return id(item) in self._entries

    def push(self, item: T) -> None:
        """Queue a newcomer, whose tenant is lifted if nothing of it waits in the class."""
        waits = item.tenant in self._lines[item.priority]
        self._counters.arrive(item.tenant, item.weight, item.priority, waits=waits)
        self._newest += 1
        self._add(item, self._newest)

    def push_front(self, item: T) -> None:
        """Put back what a replica refused, before the others of its tenant and class."""
        self._oldest -= 1
        self._add(item, self._oldest)
        self._lines[item.priority][item.tenant].entries.move_to_end(id(item), last=False)

    def push_first(self, item: T) -> None:
        """Queue work that was under way: it goes before everything but others of its kind."""
        self._newest += 1
        self._add(item, self._newest, self._first)

    def next(self, now: float) -> T | None:
        """Who is served next; it stays queued."""
        return next(iter(self.heads(now)), None)

    def heads(self, now: float) -> list[T]:
        """Who is next of each tenant and class, in the order in which they are served.

        Where the first can be served nowhere, perhaps the second one can. Without fairness, nobody
        goes before the first.
        """
        first = [self._first.head.item] if self._first.entries else []
        ranks = []
        for line in self._all_lines():
            head = line.head
            risen = int(max(0.0, now - head.item.queued_at) / self._promote_after_s)
            value = self._counters.value(line.tenant) if self._fair else 0.0
            ranks.append((max(0, line.priority - risen), value, head.order, head.item))
        ranks.sort(key=_rank)
        return first + [item for *_, item in ranks[: None if self._fair else 1]]

    def remove(self, item: T) -> None:
        """It is served, or nobody wants it any more. Raises KeyError if it is not queued."""
        entry = self._entries.pop(id(item))
        entry.waits = False
        line = entry.line
        del line.entries[id(item)]
        line.sequences -= item.n
        line.tokens -= item.num_tokens
        self.num_sequences -= item.n
        self.num_tokens -= item.num_tokens
        if line is not self._first and not line.entries:
            del self._lines[line.priority][line.tenant]
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

    def ahead(self, priority: Priority, tenant: str, weight: float) -> tuple[int, int]:
        """Sequences and tokens that would be served before a newcomer.

        Under weighted sharing, while the newcomer's tenant has its own line and the newcomer
        served, each other tenant of the class has its share, as far as its line goes.
        """
        sequences, tokens = float(self._first.sequences), float(self._first.tokens)
        own = self._lines[priority].get(tenant)
        turns = (1 + (own.sequences if own is not None else 0)) / weight
        for line in self._all_lines():
            if line.priority > priority:
                continue
            part = 1.0
            if self._fair and line.priority == priority and line is not own:
                part = min(1.0, turns * line.weight / line.sequences)
            sequences += part * line.sequences
            tokens += part * line.tokens
        return math.ceil(sequences), math.ceil(tokens)

    def backlogged(self) -> dict[str, T]:
        """Tenants that wait for their share, each with the item of theirs that has waited longest.

        Work that was under way does not count.
        """
        oldest: dict[str, T] = {}
        for line in self._all_lines():
            item = line.head.item
            other = oldest.setdefault(line.tenant, item)
            if item.queued_at < other.queued_at:
                oldest[line.tenant] = item
        return oldest

    def queued_of(self, tenant: str) -> int:
        """Items of a tenant, as ``backlogged`` counts them."""
        return sum(len(lines[tenant].entries) for lines in self._lines.values() if tenant in lines)

    def _all_lines(self) -> Iterator[_Line[T]]:
        for lines in self._lines.values():
            yield from lines.values()

    def _add(self, item: T, order: int, line: _Line[T] | None = None) -> None:
        if item in self:
            raise ValueError("it is queued already")
        if line is None:
            new: _Line[T] = _Line(item.tenant, item.priority)
            line = self._lines[item.priority].setdefault(item.tenant, new)
            line.weight = item.weight
        entry = _Entry(item, order, line)
        self._entries[id(item)] = line.entries[id(item)] = entry
        line.sequences += item.n
        line.tokens += item.num_tokens
        self.num_sequences += item.n
        self.num_tokens += item.num_tokens
        heapq.heappush(self._alarms, (item.expires_at, order, entry))


def _rank(head: tuple[int, float, int, object]) -> tuple[int, float, int]:
    """Effective class, counter, order; items themselves cannot be compared."""
    return head[:3]
