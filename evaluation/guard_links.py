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
    """One replica, as one router knows it."""

    def __init__(self, replica: SimulatedReplica) -> None:
        self.replica = replica
        self.load: LoadReport | None = None
        self._load_at = 0.0
        self._sent = SentLedger()
        self._unstarted = Unstarted()
        self._speed = Speed()
        self._open = 0
        self._view: ReplicaView | None = None

    def observe(self, load: LoadReport, now: float) -> None:
        """News of it."""
        self.load, self._load_at = load, now
        self._speed.observe(load, now)
        self._sent.observe(load)
        self._view = None

    def expect(self, submission: Submission) -> None:
        """This was sent, and is accepted."""
        self._sent.add(submission)
        self._sent.accept(submission.handle, 0 if self.load is None else self.load.step)
        self._unstarted.add(submission)
        self._open += 1
        self._view = None

    def started(self, handle: int) -> None:
        """It has a token, or will have none."""
        if handle in self._unstarted.handles:
            self._sent.remove(handle)
            self._unstarted.remove(handle)
            self._view = None

    def left(self) -> None:
        """One has ended there."""
        self._open -= 1
        self._view = None

    def view(self, now: float, max_seats: int | None) -> ReplicaView:
        """What is known now."""
        return ReplicaView(
            replica_id=self.replica.name,
            ready=True,
            info=self.replica.info,
            load=self.load,
            load_age_s=None if self.load is None else now - self._load_at,
            sent_sequences=self._sent.sequences,
            sent_tokens=self._sent.tokens,
            tokens_per_s=self._speed.tokens_per_s,
            open_sequences=self._open,
            unstarted=self._unstarted,
            max_seats=max_seats,
        )

    def recent(self, now: float, max_seats: int | None) -> ReplicaView:
        """The same, but perhaps with an age that it had before, if it is as good as new."""
        view = self._view
        if (
            view is None
            or view.max_seats != max_seats
            or (view.is_fresh(STALE_AFTER_S) and now - self._load_at > STALE_AFTER_S)
        ):
            view = self._view = self.view(now, max_seats)
        return view


class Links:
    """Those of one router."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._links: dict[str, Link] = {}

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def __getitem__(self, name: str) -> Link:
        return self._links[name]

    def join(self, replica: SimulatedReplica) -> None:
        """There is one more."""
        self._links[replica.name] = Link(replica)

    def part(self, name: str) -> None:
        """It is gone, with nothing open."""
        del self._links[name]

    def views(self, max_seats: int | None) -> list[ReplicaView]:
        """What is known of each now."""
        now = self._clock()
        return [link.view(now, max_seats) for link in self._links.values()]

    def recent(self, max_seats: int | None) -> list[ReplicaView]:
        """The same for placement, to which a report is fresh or stale, whatever its age."""
        now = self._clock()
        return [link.recent(now, max_seats) for link in self._links.values()]
