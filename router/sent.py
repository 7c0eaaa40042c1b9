"""What a router can tell of a replica from its own dealings with it, between two reports.

Owns three small accounts, fed by a replica's stream: work that no report covers yet, so that a
burst does not herd to the replica that was idle a moment ago; what has not started; and the
replica's speed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from chairlift.cluster.protocol import LoadReport, Priority, Submission

__all__ = ["SentLedger", "Speed", "Unstarted"]


@dataclass(slots=True)
class _Entry:
    sequences: int
    tokens: int
    covered_from: int | None = None


class SentLedger:
    """Requests that were sent to a replica and are in no report of its yet.

    A worker looks for arrivals until a step is over. So a request that it accepted when step s was
    the latest known is in the report of step s + 1, give or take a report that just left.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self.sequences = 0
        self.tokens = 0

    def add(self, submission: Submission) -> None:
        request = submission.request
        tokens = request.n * (len(request.prompt) + len(submission.output))
        entry = _Entry(request.n, tokens)
        self._entries[submission.handle] = entry
        self.sequences += entry.sequences
        self.tokens += entry.tokens

    def accept(self, handle: int, step: int) -> None:
        """The replica accepted it when the latest step known here was ``step``."""
        if entry := self._entries.get(handle):
            entry.covered_from = step + 1

    def observe(self, load: LoadReport) -> None:
        if not self._entries:
            return
        covered = [
            handle
            for handle, entry in self._entries.items()
            if entry.covered_from is not None and entry.covered_from <= load.step
        ]
        for handle in covered:
            self.remove(handle)

    def remove(self, handle: int) -> None:
        """It was refused, it has ended, or news of it show that it runs; others are ignored."""
        if entry := self._entries.pop(handle, None):
            self.sequences -= entry.sequences
            self.tokens -= entry.tokens


class Unstarted:
    """Sequences that were sent to a replica and have no token yet, by tenant and class.

    Attributes:
        handles: theirs, with tenant and class; for looking only.
    """

    def __init__(self) -> None:
        self.handles: dict[int, tuple[str, Priority]] = {}
        self._counts: Counter[tuple[str, Priority]] = Counter()

    def add(self, submission: Submission) -> None:
        key = submission.request.tenant, submission.request.priority
        for choice in range(submission.request.n):
            self.handles[submission.handle + choice] = key
        self._counts[key] += submission.request.n

    def remove(self, handle: int) -> None:
        """It has started, or is over; others are ignored."""
        if key := self.handles.pop(handle, None):
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]

    def of(self, tenant: str, priority: Priority) -> int:
        return self._counts[tenant, priority]


class Speed:
    """Tokens that a replica computes in a second, smoothed over the times when it had work."""

    def __init__(self) -> None:
        self.tokens_per_s: float | None = None
        self._since: tuple[int, float] | None = None

    def observe(self, load: LoadReport, now: float) -> None:
        if self._since is None:
            self._since = (load.tokens_computed, now)
            return
        tokens, start = self._since
        if now - start < 1.0:
            return
        self._since = (load.tokens_computed, now)
        measured = (load.tokens_computed - tokens) / (now - start)
        if measured > 0:
            previous = measured if self.tokens_per_s is None else self.tokens_per_s
            self.tokens_per_s = 0.7 * previous + 0.3 * measured
