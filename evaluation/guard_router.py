"""A router in simulated time: the parts of the real one that decide and count, without its streams.

Owns how a request goes through them: let in, queued, placed, followed, ended. Nothing takes time on
the way to a replica and back; what a step took and when it is over is the business of
``guard_replica`` and ``guard_world``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from chairlift.cluster.config_sections import RouterConfig, TelemetryConfig
from chairlift.cluster.errors import RequestError
from chairlift.cluster.fairness import BURST, VirtualCounters
from chairlift.cluster.guard_state import GuardState
from chairlift.cluster.protocol import Delta, FinishReason, LoadReport, Request, Submission
from chairlift.cluster.tenants import Tenant
from chairlift.evaluation.guard_links import Link, Links, SimulatedReplica
from chairlift.router import placement
from chairlift.router.accounts import Accounts
from chairlift.router.admission import Admission, AdmissionLimits, Backlog
from chairlift.router.fair_queue import FairQueue
from chairlift.router.flight import Flight
from chairlift.router.gate import Gate
from chairlift.router.metrics import Outcome, RouterMetrics
from chairlift.router.placement import Placement, ReplicaView
from chairlift.router.record import Record
from chairlift.router.recorder import Recorder, Reporter
from chairlift.router.router import STALE_AFTER_S
from chairlift.router.ticket import Ticket
from chairlift.router.waits import FirstToken, StartRate
from chairlift.workers.scheduler import Outcome as SequenceOutcome

__all__ = ["PATIENCE_S", "Asked", "Clocks", "SimulatedRouter"]

PATIENCE_S = 60.0
"""To the first token, if nobody says otherwise; who waits longer is turned away."""


@dataclass(slots=True, eq=False)
class Asked:
    """One request, as its client sees it; stands in for the real flight.

    Attributes:
        arrived_at, ended_at: simulated seconds.
        outcome: None while it is open.
        label: what its end is called: ``length``, ``abort``, or the code of an error.
        tokens_at: when each token came.
        handle: under which a replica has it.
        on_end: told when it has ended.
    """

    request: Request
    arrived_at: float
    record: Record
    on_end: Callable[[], None]
    ended_at: float | None = None
    outcome: Outcome | None = None
    label: str = ""
    tokens_at: list[float] = field(default_factory=list)
    ticket: Ticket | None = None
    handle: int = 0

    @property
    def first_token_at(self) -> float | None:
        return self.tokens_at[0] if self.tokens_at else None

    @property
    def tokens(self) -> int:
        """That have come."""
        return len(self.tokens_at)

    @property
    def let_in(self) -> bool:
        return self.outcome is not Outcome.REJECTED

    def first_token_s(self, end_s: float) -> float:
        """From its arrival; until the end of the course, if none has come."""
        return (end_s if self.first_token_at is None else self.first_token_at) - self.arrived_at

    def in_time(self, target_s: float) -> bool:
        """What is still open has not been in time."""
        return self.first_token_at is not None and self.first_token_at - self.arrived_at <= target_s

    def end(self, outcome: Outcome, label: str, now: float) -> None:
        self.outcome, self.label, self.ended_at = outcome, label, now
        self.record.end(outcome, label, now, [self.tokens])
        self.on_end()


@dataclass(frozen=True, slots=True)
class Clocks:
    """``monotonic`` starts at 0, ``wall`` at some time."""

    monotonic: Callable[[], float]
    wall: Callable[[], float]


class SimulatedRouter:
    """One router.

    Attributes:
        acknowledged: the second that the Hub has acknowledged.
        done: all that were ever asked of it.
        links: to the replicas that there are.
    """

    def __init__(
        self,
        number: int,
        replicas: Sequence[SimulatedReplica],
        settings: RouterConfig,
        telemetry: TelemetryConfig,
        clocks: Clocks,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Empty; requests wait for their first token for ``patience_s``."""
        self.number = number
        self.acknowledged = -1
        self.done: list[Asked] = []
        self._clocks = clocks
        self._patience_s = patience_s
        self._late_after_s = telemetry.first_token_target_s
        self._gate = Gate()
        self.links = Links(clocks.monotonic)
        for replica in replicas:
            self.links.join(replica)
        counters = VirtualCounters(BURST)
        limits = AdmissionLimits(
            settings.max_requests, settings.max_queued, settings.max_queued_tokens
        )
        self._accounts = Accounts(counters, Admission(limits), StartRate(), FirstToken())
        self._queue: FairQueue[Ticket] = FairQueue(
            counters, fair=settings.fair, promote_after_s=settings.promote_after_s
        )
        self._placement = Placement(
            "least-loaded",
            look_ahead=settings.look_ahead,
            stale_after_s=STALE_AFTER_S,
            random=random.Random(number),
        )
        self._metrics = RouterMetrics("simulated", self.views)
        self._recorder = Recorder(self._metrics, telemetry, clocks.wall)
        self.reporter = Reporter(
            f"router-{number}",
            "simulated",
            self._recorder,
            self._queue,
            self.views,
            clocks.monotonic,
            lambda: self._gate.guard,
        )
        self._under_way: dict[int, tuple[Ticket, Link]] = {}
        self._handles = 0

    def views(self) -> list[ReplicaView]:
        """What is known of each replica now."""
        return self.links.views(self._max_seats)

    @property
    def _max_seats(self) -> int | None:
        return None if self._gate.guard is None else self._gate.controls.max_sequences

    @property
    def open(self) -> int:
        """Requests that wait or run."""
        return len(self._queue) + len(self._under_way)

    def ask(self, request: Request, on_end: Callable[[], None]) -> Asked:
        """A request comes; ``on_end`` may not ask for more at once."""
        now = self._clocks.monotonic()
        asked = Asked(request, now, self._recorder.start(request, now), on_end)
        self.done.append(asked)
        # A ticket asks of its flight the request and the record alone.
        ticket = Ticket(cast(Flight, asked), request, now, now + self._patience_s)
        asked.ticket = ticket
        try:
            self._let_in(ticket, now)
        except RequestError as error:
            asked.end(Outcome.REJECTED, error.code, now)
            return asked
        self._queue.push(ticket)
        self.pump()
        return asked

    def leave(self, asked: Asked) -> None:
        """Its client goes away; nothing happens where it has ended."""
        ticket, now = asked.ticket, self._clocks.monotonic()
        if asked.outcome is not None or ticket is None:
            return
        if ticket in self._queue:
            self._queue.remove(ticket)
        else:
            _, link = self._under_way.pop(asked.handle)
            link.started(asked.handle)
            link.left()
            link.replica.cancel(self.number, asked.handle)
            if not asked.tokens_at:
                self._accounts.refund(ticket)
        self._ended(ticket)
        asked.end(Outcome.CANCELLED, "abort", now)

    def obey(self, state: GuardState) -> None:
        """Put the Guard's word in force, here and at the replicas."""
        if not self._gate.obey(state):
            return
        self._queue.fair = state.controls.fair
        self._placement.affinity = state.controls.affinity
        for link in self.links:
            link.replica.obey(state.controls)
        self.pump()

    def pump(self) -> None:
        """Send while somebody waits and a replica has room."""
        now = self._clocks.monotonic()
        while len(self._queue):
            views = self._placement.open_to_some(self.links.recent(self._max_seats))
            if not views:
                return
            for ticket in self._queue.heads(now):
                chosen = self._placement.pick(views, ticket.need(0), lambda _: 0)
                if chosen is not None:
                    self._queue.remove(ticket, served=True)
                    self._send(ticket, self.links[chosen], now)
                    break
            else:
                return

    def frame(self, replica: SimulatedReplica, outcomes: Iterable[SequenceOutcome]) -> None:
        """News of a step; the load report comes with it, if the replica's reports are sound."""
        now = self._clocks.monotonic()
        if not replica.frozen:
            self.links[replica.name].observe(replica.load, now)
        for outcome in outcomes:
            if outcome.key.origin == self.number and outcome.key.handle in self._under_way:
                self._take(outcome, now)

    def heartbeat(self, replica: SimulatedReplica, load: LoadReport) -> None:
        """The replica says its load anew."""
        self.links[replica.name].observe(load, self._clocks.monotonic())

    def tick(self, elapsed_s: float) -> None:
        """Turn away who waited too long, and close the second; ten times a second."""
        now = self._clocks.monotonic()
        if not len(self._queue):
            self._accounts.starts.idle()
        if self._gate.controls.demote_late:
            self._queue.demote(now, self._late_after_s)
        for ticket in self._queue.expired(now):
            self._accounts.expired(ticket, now)
            self._ended(ticket)
            _asked(ticket).end(Outcome.REJECTED, "deadline_exceeded", now)
        self._recorder.tick(self._queue.backlogged(), now, elapsed_s)
        self.pump()

    def _let_in(self, ticket: Ticket, now: float) -> None:
        """Raises the RequestError with which it is turned away."""
        request, need = ticket.request, ticket.need(0)
        views = self.links.recent(self._max_seats)
        self._gate.check(request, now)
        ahead, _ = self._queue.ahead(request.priority, request.tenant, request.weight, now)
        ticket.prediction = self._accounts.first_token.predict(
            ahead,
            placement.free_credits(views, STALE_AFTER_S, ahead + 1),
            self._accounts.starts.per_second(now),
            len(request.prompt),
            max((view.tokens_per_s or 0.0 for view in views), default=None),
        )
        predicted_s = None if ticket.prediction is None else ticket.prediction.seconds
        self._gate.check_wait(predicted_s, self._late_after_s)
        backlog = Backlog(
            open_requests=len(self._under_way) + len(self._queue),
            queued=len(self._queue),
            queued_tokens=self._queue.num_tokens,
            predicted_s=predicted_s,
            retry_after_s=lambda: placement.retry_after_s(views, self._queue.num_tokens),
            waits=len(self._queue) > 0
            or not any(self._placement.has_room(view, need) for view in views),
        )
        tenant = Tenant(request.tenant, weight=request.weight, priority=request.priority)
        self._accounts.admission.check(tenant, request, self._patience_s, backlog, now)
        self._accounts.admission.started(tenant, len(request.prompt), now)

    def _send(self, ticket: Ticket, link: Link, now: float) -> None:
        self._handles += 1
        handle = self._handles
        submission = Submission(handle, ticket.request, 0, ticket.output)
        _asked(ticket).handle = handle
        _asked(ticket).record.sent(now, link.replica.name)
        self._accounts.sent(ticket, now, waiting=len(self._queue) > 0)
        link.expect(submission)
        self._under_way[handle] = ticket, link
        link.replica.submit(self.number, handle, ticket.request, ticket.output)

    def _take(self, outcome: SequenceOutcome, now: float) -> None:
        ticket, link = self._under_way[outcome.key.handle]
        asked, handle = _asked(ticket), outcome.key.handle
        delta = Delta(handle, outcome.tokens, outcome.finish)
        self._accounts.served(ticket, 0, delta, now)
        if outcome.tokens:
            link.started(handle)
            if not asked.tokens_at:
                asked.record.first_token(now, 0)
            else:
                asked.record.next_tokens(len(outcome.tokens), now - asked.tokens_at[-1])
            asked.record.tokens(len(outcome.tokens), asked.tokens, now)
            asked.tokens_at += [now] * len(outcome.tokens)
        if outcome.finish is None:
            return
        del self._under_way[handle]
        link.left()
        if outcome.finish is FinishReason.HANDED_OVER:
            link.started(handle)
            self._queue.push_first(_onwards(asked, now))
            return
        self._ended(ticket)
        asked.end(Outcome.FINISHED, "length", now)

    def _ended(self, ticket: Ticket) -> None:
        self._accounts.admission.ended(ticket.tenant)


def _asked(ticket: Ticket) -> Asked:
    """What the ticket has for a flight."""
    return cast(Asked, ticket.flight)


def _onwards(asked: Asked, now: float) -> Ticket:
    """It goes on elsewhere; see ``router.flight``."""
    expires_at = math.inf
    if asked.ticket is not None and not asked.tokens_at:
        expires_at = asked.ticket.expires_at
    asked.ticket = Ticket(
        cast(Flight, asked),
        asked.request,
        now,
        expires_at,
        output=(0,) * asked.tokens,
        under_way=True,
    )
    return asked.ticket
