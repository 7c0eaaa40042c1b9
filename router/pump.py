"""Gives what waits to replicas that have room, and acts on what they say.

Owns the queue, late binding, and the way of each choice from replica to replica:

    push ─► queue ─► next in line, best replica with credits ─► send ─► answered ─► received …
              ▲                                                   │                    │
              └──────────────── refused, lost, handed over ───────┴────────────────────┘

A replica is given at most what its credits allow; the rest waits here, where a fairer or a more
urgent request can still go before it. It knows neither members nor admission, and starts nothing
by itself: it runs when there is news.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chairlift.cluster.errors import (
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    ReplicaLost,
    RequestError,
    Unavailable,
)
from chairlift.cluster.protocol import Answer, Delta, FinishReason, Refusal
from chairlift.router.accounts import Accounts
from chairlift.router.failover import Failover, Stranded
from chairlift.router.fair_queue import FairQueue
from chairlift.router.flight import Flight
from chairlift.router.hedging import Hedging
from chairlift.router.metrics import Move, RouterMetrics
from chairlift.router.placement import Placement, ReplicaView
from chairlift.router.replica_stream import ReplicaStream
from chairlift.router.ticket import Leg, Ticket

__all__ = ["Pump", "PumpParts"]

logger = logging.getLogger(__name__)

LOOK_S = 5.0
"""How long a request waits until it is known whether the replicas that it lost have died.

One that a busy machine kept from speaking is back by then, and of one that hangs Serve is rid.
"""

_REAL_ENDS = (None, FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True)
class _Loss:
    """Choices that were lost, and what is to be judged before they go on."""

    leg: Leg
    choices: list[int]
    stranded: Stranded
    at: float


@dataclass(frozen=True, slots=True)
class PumpParts:
    """What a pump works with; each is used by this pump alone.

    Attributes:
        streams: replica id → stream, of the present members.
        views: what is known of each of them.
        hedging: None when a sequence that does not start is left where it is.
    """

    queue: FairQueue[Ticket]
    placement: Placement
    failover: Failover
    accounts: Accounts
    metrics: RouterMetrics
    streams: Mapping[str, ReplicaStream]
    views: Callable[[], list[ReplicaView]]
    hedging: Hedging | None
    clock: Callable[[], float]


class Pump:
    """The ``LegOwner`` of one router's legs; belongs to one event loop."""

    def __init__(self, parts: PumpParts) -> None:
        self.accounts = parts.accounts
        self._parts = parts
        self._queue = parts.queue
        self._next_handle = 1
        self._scheduled = False
        self._alone_since: float | None = None
        self._open_losses: list[_Loss] = []

    def push(self, ticket: Ticket) -> None:
        """A request comes: queue it, and send what can be sent."""
        ticket.queue = self._queue
        self._queue.push(ticket)
        self.run()

    def soon(self) -> None:
        """Run when the present news are dealt with, once for all of them."""
        if not self._scheduled and len(self._queue):
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.run)

    def run(self) -> None:
        """Send while somebody waits and a replica has room for who is next."""
        self._scheduled = False
        now = self._parts.clock()
        while len(self._queue):
            views = self._parts.placement.open_to_some(self._parts.views())
            if not views:
                return  # whoever is next
            for ticket in self._queue.heads(now):
                stream = self._choose(ticket, views)
                if stream is not None:
                    self._queue.remove(ticket, served=True)
                    self._send(ticket, stream, now)
                    break  # its tenant has been charged, so the order may be another one
            else:
                return

    def tick(self, now: float, wait_for_replica_s: float, *, may_sleep: bool = False) -> None:
        """Turn away who waited too long; to be called often.

        Where replicas ``may_sleep``, one is started for who waits, so the time counts from then on.
        """
        if not len(self._queue):
            self.accounts.starts.idle()
        for ticket in self._queue.expired(now):
            ticket.queue = None
            self.accounts.expired(ticket, now)
            waited = now - ticket.queued_at
            error = DeadlineExceeded(f"no replica had room for the request within {waited:.1f} s")
            ticket.flight.fail(error)
        asleep = may_sleep and not len(self._queue)
        if asleep or any(stream.ready for stream in self._parts.streams.values()):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since >= wait_for_replica_s:
            _turn_all_away(self._queue, now, wait_for_replica_s)
        losses, self._open_losses = self._open_losses, []
        for loss in losses:
            self._go_on(loss, now)
        if self._parts.hedging is not None:
            for leg in self._parts.hedging.late(now):
                self._hedge(leg, now)
        self.soon()

    def answered(self, leg: Leg, answer: Answer) -> None:
        """A replica's word on a submission."""
        ticket, now = leg.ticket, self._parts.clock()
        if ticket.flight.journey is not None:
            ticket.flight.journey.answered(leg, answer, now)
        if answer.refusal is None:
            leg.accepted_at = now
            ticket.flight.accept()
            if self._parts.hedging is not None:
                self._parts.hedging.watch(leg)
            return
        leg.running.clear()
        self.accounts.refund(ticket)
        if answer.refusal in (Refusal.QUEUE_FULL, Refusal.DRAINING):
            self._put_back(ticket)
        else:
            ticket.flight.fail(_invalid(ticket, leg.stream.view(), answer))

    def received(self, leg: Leg, choice: int, delta: Delta, at: float) -> None:
        """News of one choice; an end that is no real one sends it elsewhere."""
        flight = leg.ticket.flight
        self.accounts.served(leg.ticket, choice, delta, at)
        if self._parts.hedging is not None and delta.tokens:
            self._parts.hedging.started(leg, at)
        if delta.finish in _REAL_ENDS:
            flight.receive(choice, delta, at)
            return
        if delta.tokens:
            flight.receive(choice, delta._replace(finish=None), at)
        if delta.finish is FinishReason.HANDED_OVER:
            self._move(flight, choice, Move.DRAINED)
        else:
            self._strand(leg, [choice], (leg.handle, ""), "a replica could not compute it")

    def lost(self, leg: Leg, reason: str) -> None:
        """A replica is gone, or out of reach, with all that it ran."""
        choices = sorted(leg.running)
        leg.running.clear()
        self._strand(leg, choices, (leg.era, leg.stream.replica_id), reason)

    def _choose(self, ticket: Ticket, views: Sequence[ReplicaView]) -> ReplicaStream | None:
        """The replica for a ticket; None when none has room."""
        streams = self._parts.streams
        if len(streams) > 1 and ticket.avoid:
            views = [view for view in views if view.replica_id != ticket.avoid]
        sizes = (view.info.block_size for view in views if view.info is not None)
        need = ticket.need(next(sizes, 0))
        chosen = self._parts.placement.pick(
            views, need, lambda replica_id: streams[replica_id].dispatch.index.match(need.names)
        )
        return None if chosen is None else streams[chosen]

    def _send(self, ticket: Ticket, stream: ReplicaStream, now: float) -> None:
        ticket.queue = None
        leg = Leg(self, ticket, stream, self._next_handle)
        self._next_handle += ticket.n
        for choice in leg.running:
            ticket.flight.choices[choice].place = leg
        ticket.flight.record.sent(now, stream.replica_id)
        self.accounts.sent(ticket, now, waiting=len(self._queue) > 0)
        size = 0 if stream.info is None else stream.info.block_size
        names = ticket.need(size).names
        if ticket.flight.journey is not None:
            others = sum(each.ready for each in self._parts.streams.values()) - stream.ready
            cached_blocks = stream.dispatch.index.match(names)
            ticket.flight.journey.sent(leg, now, cached_blocks, others=others)
        stream.send(leg.submission, leg, names)

    def _put_back(self, ticket: Ticket) -> None:
        """It was not taken: the same ticket waits again, before others of its tenant."""
        if ticket.flight.outcome is not None:
            return
        for choice in range(ticket.choice, ticket.choice + ticket.n):
            ticket.flight.choices[choice].place = ticket
        ticket.queue = self._queue
        if ticket.under_way:
            self._queue.push_first(ticket)
        else:
            self._queue.push_front(ticket)
        self.soon()

    def _move(self, flight: Flight, choice: int, why: Move, avoid: str = "") -> None:
        """Let a choice go on elsewhere, after what has come of it."""
        now = self._parts.clock()
        ticket = flight.next_ticket(choice, now)
        if ticket is None:
            return
        if flight.journey is not None:
            flight.journey.moved(why, choice, now)
        self._parts.metrics.moved[why] += 1
        ticket.avoid = avoid
        ticket.queue = self._queue
        self._queue.push_first(ticket)
        self.soon()

    def _strand(self, leg: Leg, choices: list[int], loss: tuple[object, str], reason: str) -> None:
        """Choices were lost.

        ``loss`` says what happened, so that legs that were lost together count once, and to which
        replica; "" when that did not die, but failed for certain.
        """
        losses, now = leg.ticket.flight.losses, self._parts.clock()
        counts = loss not in losses
        losses[loss] = None
        if counts:
            leg.ticket.flight.record.lost(leg.stream.replica_id)
        lost = [replica_id for _, replica_id in losses]
        stranded = Stranded(lost, leg.ticket.tenant, reason, counts)
        if leg.ticket.flight.journey is not None:
            leg.ticket.flight.journey.lost(leg, reason, now)
        self._go_on(_Loss(leg, choices, stranded, now), now)

    def _go_on(self, loss: _Loss, now: float) -> None:
        """Send what was lost elsewhere, if its request may move; ends the request if not."""
        flight, leg = loss.leg.ticket.flight, loss.leg
        if flight.outcome is not None:
            return
        if self._parts.failover.is_open(loss.stranded) and now - loss.at < LOOK_S:
            self._open_losses.append(loss)
            return
        error = self._parts.failover.judge(loss.stranded, now)
        if error is not None:
            flight.fail(error)
        elif leg.accepted_at is None:
            self.accounts.refund(leg.ticket)
            self._parts.metrics.moved[Move.LOST] += 1
            self._put_back(leg.ticket)
        else:
            for choice in loss.choices:
                self._move(flight, choice, Move.LOST)

    def _hedge(self, leg: Leg, now: float) -> None:
        """Move a sequence that does not start, if another replica could start it now."""
        choices, ticket = sorted(leg.running), leg.ticket
        ticket.avoid = leg.stream.replica_id
        views = self._parts.views()
        if len(views) < 2 or self._choose(ticket, views) is None:
            return
        leg.abandon()
        for choice in choices:
            self._move(ticket.flight, choice, Move.HEDGED, avoid=leg.stream.replica_id)


def _turn_all_away(queue: FairQueue[Ticket], now: float, waited_s: float) -> None:
    """There has been no replica for too long."""
    while (ticket := queue.next(now)) is not None:
        queue.remove(ticket)
        ticket.queue = None
        error: RequestError = Unavailable(f"no replica is ready, since {waited_s:.0f} s")
        if ticket.under_way:
            error = ReplicaLost(f"no other replica came within {waited_s:.0f} s")
        ticket.flight.fail(error)


def _invalid(ticket: Ticket, view: ReplicaView, answer: Answer) -> RequestError:
    if answer.refusal is Refusal.TOO_LONG:
        limit = view.info.max_sequence_tokens if view.info is not None else 0
        param = "prompt" if len(ticket.request.prompt) >= limit else "max_tokens"
        return InvalidRequest(answer.detail, param=param, code="context_length_exceeded")
    if ticket.under_way:  # it was valid where it came from
        return InternalError(f"a replica does not take the request over: {answer.detail}")
    field, colon, _ = answer.detail.partition(":")  # the field at fault stands before the colon
    return InvalidRequest(answer.detail, param=field if colon else None)
