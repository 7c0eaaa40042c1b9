"""Choices of one request on their way to a replica, and with it.

Owns two states of the same thing. A ``Ticket`` waits in the queue; when it is sent it becomes a
``Leg``, which hears what the replica has to say; when the replica is lost, each choice of the leg
that has not ended gets a ticket of its own again. What becomes of them is decided by the router.

    Ticket ──send──► Leg ──answered──► receive … receive
       ▲              │                      │
       └── refused ───┴──────── lost ────────┘
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from chairlift.cluster.block_names import short_names
from chairlift.cluster.protocol import Answer, Delta, Priority, Request, Submission
from chairlift.router.placement import Need
from chairlift.router.waits import Prediction

if TYPE_CHECKING:
    from chairlift.router.accounts import Accounts
    from chairlift.router.flight import Flight
    from chairlift.router.replica_stream import ReplicaStream

__all__ = ["Leg", "LegOwner", "Ticket"]


class TicketQueue(Protocol):
    """What a ticket needs of the queue in which it stands."""

    def remove(self, item: Ticket, /) -> None: ...


@dataclass(slots=True, eq=False)
class Ticket:
    """Choices that wait for a replica; what a ``FairQueue`` holds.

    Attributes:
        request: with as many choices as wait.
        choice, output: see ``protocol.Submission``.
        queued_at, expires_at: of the router's clock; a ticket that expires is turned away.
        avoid: a replica that is to have it only if there is no other.
        prediction: how long it was to wait, until that is known.
        paid: tokens of the prompt that its tenant was charged for.
        under_way: it ran elsewhere before, and its tenant has paid.
        queue: in which it stands; None while it does not.
    """

    flight: Flight
    request: Request
    queued_at: float
    expires_at: float
    choice: int = 0
    output: tuple[int, ...] = ()
    avoid: str = ""
    prediction: Prediction | None = None
    paid: int = 0
    under_way: bool = False
    queue: TicketQueue | None = None
    _block_size: int = 0
    _need: Need | None = None

    @property
    def tenant(self) -> str:
        return self.request.tenant

    @property
    def weight(self) -> float:
        return self.request.weight

    @property
    def priority(self) -> Priority:
        return self.request.priority

    @property
    def n(self) -> int:
        return self.request.n

    @property
    def num_tokens(self) -> int:
        """To be computed before it decodes, if nothing of it is cached."""
        return len(self.request.prompt) + len(self.output)

    def need(self, block_size: int) -> Need:
        """What it takes of a replica with blocks of this size; 0 where that is not known."""
        if self._need is None or self._block_size != block_size:
            request = self.request
            tokens = (*request.prompt, *self.output)
            self._block_size = block_size
            self._need = Need(
                num_tokens=self.num_tokens,
                n=self.n,
                max_total=len(request.prompt) + request.sampling.max_tokens,
                names=short_names(tokens, request.cache_salt, block_size) if block_size else (),
                tenant=self.tenant,
                priority=self.priority,
                under_way=self.under_way,
            )
        return self._need

    def cancel(self, choice: int) -> None:
        """Nobody wants it any more; all of its choices, for they were never apart."""
        queue, self.queue = self.queue, None
        if queue is not None:
            queue.remove(self)


class LegOwner(Protocol):
    """Decides what the replica's words mean."""

    accounts: Accounts

    def answered(self, leg: Leg, answer: Answer) -> None: ...

    def received(self, leg: Leg, choice: int, delta: Delta, at: float) -> None: ...

    def lost(self, leg: Leg, reason: str) -> None: ...


class Leg:
    """Choices that were sent to one replica; the ``Listener`` of their stream.

    Attributes:
        running: indices of the choices that have not ended here.
        accepted_at: of the router's clock.
        era: the stream's, at the time; legs of one era are lost together.
        started: a token of it has come.
    """

    __slots__ = (
        "_owner",
        "accepted_at",
        "era",
        "handle",
        "running",
        "started",
        "stream",
        "ticket",
    )

    def __init__(self, owner: LegOwner, ticket: Ticket, stream: ReplicaStream, handle: int) -> None:
        self._owner = owner
        self.ticket = ticket
        self.stream = stream
        self.handle = handle
        self.accepted_at: float | None = None
        self.started = False
        self.era = stream.era
        self.running = set(range(ticket.choice, ticket.choice + ticket.n))

    @property
    def submission(self) -> Submission:
        ticket = self.ticket
        return Submission(self.handle, ticket.request, ticket.choice, ticket.output)

    def answered(self, answer: Answer) -> None:
        self._owner.answered(self, answer)

    def receive(self, delta: Delta, at: float) -> None:
        choice = delta.handle - self.handle + self.ticket.choice
        if delta.finish is not None:
            self.running.discard(choice)
        self.started |= bool(delta.tokens)
        self._owner.received(self, choice, delta, at)

    def lose(self, reason: str) -> None:
        self._owner.lost(self, reason)

    def cancel(self, choice: int) -> None:
        """Nobody wants this choice any more."""
        if choice in self.running:
            self.running.discard(choice)
            if not self.started:
                self._owner.accounts.refund(self.ticket)
            self.stream.cancel([self.handle + choice - self.ticket.choice])

    def abandon(self) -> None:
        """Nobody wants any of it from this replica."""
        first = self.handle - self.ticket.choice
        self.stream.cancel([first + choice for choice in self.running])
        self.running.clear()
