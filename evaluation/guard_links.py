"""What a simulated router knows of replicas, as ``router.dispatch`` does of real ones.

Owns the accounts of each replica and the snapshots that follow from them. For placement one is made
anew only where something has changed: in a world of hundreds that is what costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from chairlift.cluster.protocol import Controls, LoadReport, ReplicaInfo, Request, Submission
from chairlift.router.placement import ReplicaView
from chairlift.router.router import STALE_AFTER_S
from chairlift.router.sent import SentLedger, Speed, Unstarted

__all__ = ["Link", "Links", "SimulatedReplica"]


class SimulatedReplica(Protocol):
    """What a router sees of a replica.

    Attributes:
        name: of the replica.
        frozen: its load reports do not leave it.
        info, load: what it says of itself.
    """

    name: str
    frozen: bool
    info: ReplicaInfo
    load: LoadReport

    def submit(
        self, origin: int, handle: int, request: Request, output: tuple[int, ...] = ()
    ) -> None:
        """A router sends a request, of one choice, that has come so far."""

    def cancel(self, origin: int, handle: int) -> None:
        """A router takes it back."""

    def obey(self, controls: Controls) -> None:
        """Put newer Controls in force."""


class Link:
    """One replica, as one router knows it.

    Attributes:
        load_at: when it last told its load; 0 while it has not.
    """

    def __init__(self, replica: SimulatedReplica, changed: Callable[[Link], None]) -> None:
        """``changed``: told whenever its view is another one."""
        self.replica = replica
        self.load: LoadReport | None = None
        self.load_at = 0.0
        self._sent = SentLedger()
        self._unstarted = Unstarted()
        self._speed = Speed()
        self._open = 0
        self._changed = changed

    def observe(self, load: LoadReport, now: float) -> None:
        """News of it."""
        self.load, self.load_at = load, now
        self._speed.observe(load, now)
        self._sent.observe(load)
        self._changed(self)

    def expect(self, submission: Submission) -> None:
        """This was sent, and is accepted."""
        self._sent.add(submission)
        self._sent.accept(submission.handle, 0 if self.load is None else self.load.step)
        self._unstarted.add(submission)
        self._open += 1
        self._changed(self)

    def started(self, handle: int) -> None:
        """It has a token, or will have none."""
        if handle in self._unstarted.handles:
            self._sent.remove(handle)
            self._unstarted.remove(handle)
            self._changed(self)

    def left(self) -> None:
        """One has ended there."""
        self._open -= 1
        self._changed(self)

    def view(self, now: float, max_seats: int | None) -> ReplicaView:
        """What is known now."""
        return ReplicaView(
            replica_id=self.replica.name,
            ready=True,
            info=self.replica.info,
            load=self.load,
            load_age_s=None if self.load is None else now - self.load_at,
            sent_sequences=self._sent.sequences,
            sent_tokens=self._sent.tokens,
            tokens_per_s=self._speed.tokens_per_s,
            open_sequences=self._open,
            unstarted=self._unstarted,
            max_seats=max_seats,
        )


class Links:
    """Those of one router."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._links: dict[str, Link] = {}
        self._recent: dict[str, ReplicaView] = {}
        self._recent_seats: int | None = None
        self._changed: dict[str, Link] = {}
        self._fresh_until = 0.0

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def __getitem__(self, name: str) -> Link:
        return self._links[name]

    def join(self, replica: SimulatedReplica) -> None:
        """There is one more."""
        link = self._links[replica.name] = Link(replica, self._note)
        self._note(link)

    def part(self, name: str) -> None:
        """It is gone, with nothing open."""
        del self._links[name]
        self._recent.pop(name, None)
        self._changed.pop(name, None)

    def views(self, max_seats: int | None) -> list[ReplicaView]:
        """What is known of each now."""
        now = self._clock()
        return [link.view(now, max_seats) for link in self._links.values()]

    def recent(self, max_seats: int | None) -> list[ReplicaView]:
        """The same for placement, to which a report is fresh or stale, whatever its age.

        Made anew where something has changed, and all where one that was fresh may be stale.
        """
        now = self._clock()
        if now > self._fresh_until or max_seats != self._recent_seats:
            self._changed |= self._links
            self._recent_seats = max_seats
            loads_at = [each.load_at for each in self if now - each.load_at <= STALE_AFTER_S]
            self._fresh_until = min(loads_at, default=now) + STALE_AFTER_S
        for name, link in self._changed.items():
            self._recent[name] = link.view(now, max_seats)
        self._changed.clear()
        return list(self._recent.values())

    def _note(self, link: Link) -> None:
        self._changed[link.replica.name] = link
