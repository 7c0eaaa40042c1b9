"""The lines of a fair queue, and two ways not to look at all of them.

Owns a line's items and sums, which line's head goes first, and what stands before a newcomer. Who
is late, and what that means, is the business of ``fair_queue``.

A rank is (level, value of the tenant, order of arrival). Values change with every token that a
tenant is served, but they hardly ever fall, so a heap may hold old ones: a line that comes to the
top with a value that has grown since goes back to its place. A line is ranked anew where its head
is another one, where the value of its tenant fell, and when its head rises a level.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

from chairlift.cluster.fairness import VirtualCounters
from chairlift.cluster.protocol import Priority

__all__ = ["FIRST", "Entry", "Line", "LineBook", "LineKey", "LineOrder", "LineSums", "Queued"]

FIRST = -1
"""The level of what goes before all classes."""

LineKey = tuple[str, Priority, int]
"""Tenant, class, and level."""


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

_CLASSES = frozenset(map(int, Priority))


@dataclass(slots=True, eq=False)
class Line(Generic[T]):
    """Items in order, by identity, with sums over them; ``level``: from which they rise.

    ``mark`` tells its present rank from those that are void.
    """

    tenant: str = ""
    priority: Priority = Priority.INTERACTIVE
    level: int = Priority.INTERACTIVE
    weight: float = 1.0
    entries: OrderedDict[int, Entry[T]] = field(default_factory=OrderedDict)
    sequences: int = 0
    tokens: int = 0
    mark: int = 0

    @property
    def head(self) -> Entry[T]:
        return next(iter(self.entries.values()))

    @property
    def key(self) -> LineKey:
        return self.tenant, self.priority, self.level

    def put(self, entry: Entry[T]) -> None:
        """Append it, or where it belongs by its order, if it came back."""
        least = self.head.order if self.entries else entry.order
        most = next(reversed(self.entries.values())).order if self.entries else entry.order
        self.entries[id(entry.item)] = entry
        if entry.order < least:
            self.entries.move_to_end(id(entry.item), last=False)
        elif entry.order < most:
            self.entries = OrderedDict(sorted(self.entries.items(), key=_order))
        self.sequences += entry.item.n
        self.tokens += entry.item.num_tokens
        entry.line = self

    def take(self, entry: Entry[T]) -> None:
        del self.entries[id(entry.item)]
        self.sequences -= entry.item.n
        self.tokens -= entry.item.num_tokens

    def before(self, since: float) -> list[Entry[T]]:
        """Those at the front that came before ``since``."""
        entries = self.entries.values()
        return list(takewhile(lambda entry: entry.item.queued_at < since, entries))


@dataclass(slots=True, eq=False)
class Entry(Generic[T]):
    """An item in its place; ``order`` grows with arrival and is negative for what came back."""

    item: T
    order: int
    line: Line[T]
    waits: bool = True

    def level(self, now: float, promote_after_s: float) -> int:
        """Where it has risen to."""
        return max(0, self.line.level - self._risen(now, promote_after_s))

    def rises_at(self, now: float, promote_after_s: float) -> float:
        """When it rises next."""
        return self.item.queued_at + (self._risen(now, promote_after_s) + 1) * promote_after_s

    def _risen(self, now: float, promote_after_s: float) -> int:
        return int(max(0.0, now - self.item.queued_at) / promote_after_s)


class LineOrder(Generic[T]):
    """Finds the line whose head goes first, of lines that are all in ``lines``."""

    _VOID = 64
    """Ranks that are void and are kept at most, beyond three for each line."""

    def __init__(
        self,
        lines: Mapping[LineKey, Line[T]],
        value: Callable[[str], float],
        promote_after_s: float,
    ) -> None:
        """``value``: of a tenant; see ``touch`` for when it falls."""
        self._lines = lines
        self._value = value
        self._promote_after_s = promote_after_s
        self._ranks: list[list[tuple[float, int, int, Line[T]]]] = [[] for _ in Priority]
        self._rising: list[tuple[float, int, int, Line[T]]] = []
        self._touched: dict[int, Line[T]] = {}
        self._at = -math.inf

    def touch(self, line: Line[T]) -> None:
        """It has another head, or none, or its tenant's value fell."""
        self._touched[id(line)] = line

    def least(self, now: float) -> Line[T] | None:
        """The first line; None where there is none. All are to be of a class's level."""
        self._settle(now)
        for ranks in self._ranks:
            while ranks:
                value, order, mark, line = ranks[0]
                if mark != line.mark:
                    heapq.heappop(ranks)
                elif (present := self._value(line.tenant)) > value:
                    heapq.heapreplace(ranks, (present, order, mark, line))
                else:
                    return line
        return None

    def _settle(self, now: float) -> None:
        """Rank anew what has to be."""
        held = len(self._rising) + sum(map(len, self._ranks))
        if now < self._at or held > 3 * len(self._lines) + self._VOID:
            self._rising.clear()
            for ranks in self._ranks:
                ranks.clear()
            self._touched.update((id(line), line) for line in self._lines.values())
        self._at = now
        while self._rising and self._rising[0][0] <= now:
            _, _, mark, line = heapq.heappop(self._rising)
            if mark == line.mark:
                self._touched[id(line)] = line
        for line in self._touched.values():
            line.mark += 1
            if line.entries and line.level < len(self._ranks):
                self._rank(line, now)
        self._touched.clear()

    def _rank(self, line: Line[T], now: float) -> None:
        head, mark = line.head, line.mark
        level = head.level(now, self._promote_after_s)
        heapq.heappush(self._ranks[level], (self._value(line.tenant), head.order, mark, line))
        if level > 0:
            rises_at = head.rises_at(now, self._promote_after_s)
            heapq.heappush(self._rising, (rises_at, head.order, mark, line))


@dataclass(slots=True)
class _Sum:
    """Over lines of one class that have as many sequences for their weight."""

    lines: int = 0
    sequences: int = 0
    tokens: int = 0


class LineSums:
    """What stands before a newcomer, from sums by how much a tenant has for its weight.

    There are as many sums as there are such quotients, which are few however many tenants wait.
    """

    def __init__(self) -> None:
        self._classes: dict[Priority, dict[float, _Sum]] = {each: {} for each in Priority}
        self._totals = {each: _Sum() for each in Priority}

    def change(self, line: Line[T], sign: int) -> None:
        """Take it out before it changes, with -1, and put it in again, with 1."""
        if not line.entries:
            return
        sums, quotient = self._classes[line.priority], line.sequences / line.weight
        if (sum_ := sums.get(quotient)) is None:
            sum_ = sums[quotient] = _Sum()
        for each in (sum_, self._totals[line.priority]):
            each.lines += sign
            each.sequences += sign * line.sequences
            each.tokens += sign * line.tokens
        if not sum_.lines:
            del sums[quotient]

    def ahead(self, priority: Priority, own: Line[T] | None, weight: float) -> tuple[float, float]:
        """Sequences and tokens, as ``FairQueue.ahead`` has them; ``own``: the newcomer's line."""
        sequences = tokens = 0.0
        for each in Priority:
            if each < priority:
                sequences += self._totals[each].sequences
                tokens += self._totals[each].tokens
        turns = (1 + (own.sequences if own is not None else 0)) / weight
        for quotient, sum_ in self._classes[priority].items():
            share = min(1.0, turns / quotient)
            sequences += share * sum_.sequences
            tokens += share * sum_.tokens
        if own is not None:
            more = 1.0 - min(1.0, turns * own.weight / own.sequences)
            sequences += more * own.sequences
            tokens += more * own.tokens
        return sequences, tokens


class LineBook(Generic[T]):
    """Puts into lines and takes out of them, so that order and sums always follow.

    Lines of a level that is no class's are in neither.
    """

    def __init__(
        self,
        lines: Mapping[LineKey, Line[T]],
        counters: VirtualCounters,
        promote_after_s: float,
    ) -> None:
        self.sums = LineSums()
        self._lines = lines
        self._counters = counters
        self._order = LineOrder(lines, counters.value, promote_after_s)

    def least(self, now: float) -> Line[T] | None:
        """The line of the head that goes first; all lines are to be of a class's level."""
        for tenant in self._counters.take_fallen():
            for priority in Priority:
                line = self._lines.get((tenant, priority, priority))
                if line is not None:
                    self._order.touch(line)
        return self._order.least(now)

    def put(self, entry: Entry[T], line: Line[T], weight: float | None = None) -> None:
        """``weight``: of the line, from now on."""
        counts, head = line.level in _CLASSES, line.entries and line.head
        if counts:
            self.sums.change(line, -1)
        line.put(entry)
        line.weight = line.weight if weight is None else weight
        if counts:
            self.sums.change(line, 1)
            if head is not line.head:
                self._order.touch(line)

    def take(self, entry: Entry[T]) -> None:
        line = entry.line
        counts, head = line.level in _CLASSES, line.head
        if counts:
            self.sums.change(line, -1)
        line.take(entry)
        if counts:
            self.sums.change(line, 1)
            if head is entry:
                self._order.touch(line)


def _order(entry: tuple[int, Entry[T]]) -> int:
    return entry[1].order
