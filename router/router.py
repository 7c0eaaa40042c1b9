"""The router: who gets in, and what one router process consists of.

Owns admission, the account of how each request ended, what the Guard has put in force, and the
clockwork that looks after all of them. Who is next and where it goes is the business of ``pump``,
a request's own life that of ``flight``. It knows nothing of HTTP, of models or of Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn

from chairlift.cluster.config import RouterConfig, TelemetryConfig
from chairlift.cluster.errors import (
    DeadlineExceeded,
    InvalidRequest,
    RequestError,
    Unavailable,
)
from chairlift.cluster.fairness import BURST, VirtualCounters
from chairlift.cluster.guard_state import GuardState
from chairlift.cluster.tracing import Tracer
from chairlift.router import placement
from chairlift.router.accounts import Accounts
from chairlift.router.admission import Admission, AdmissionLimits, Backlog
from chairlift.router.ask import Ask
from chairlift.router.failover import Failover
from chairlift.router.fair_queue import FairQueue
from chairlift.router.flight import Flight, FlightSupport
from chairlift.router.gate import Gate
from chairlift.router.hedging import Hedging
from chairlift.router.journey import start_journey
from chairlift.router.members import Members
from chairlift.router.metrics import RouterMetrics
from chairlift.router.passport import Passport
from chairlift.router.placement import Placement, ReplicaView
from chairlift.router.pump import Pump, PumpParts
from chairlift.router.recorder import Recorder, Reporter
from chairlift.router.replica_stream import ReplicaStream, StreamTiming, Visitor
from chairlift.router.retry_budget import RetryBudget
from chairlift.router.shared_use import SharedUse
from chairlift.router.tenant_metrics import TenantMetrics
from chairlift.router.ticket import Ticket
from chairlift.router.tokenizer import Tokenizer
from chairlift.router.waits import FirstToken, Prediction, StartRate

__all__ = ["Router"]

logger = logging.getLogger(__name__)

TICK_S = 0.1
IDLE_TICK_S = 0.2
"""Between two looks while no request is open, so that little is left to notice."""
STALE_AFTER_S = 1.0
"""Age after which a load report says nothing; a worker makes four in a second."""


class Router:
    """Takes requests to replicas; belongs to one event loop.

    Attributes:
        id: of this process, among all routers.
        metrics: counts and latencies of all requests.
        members: the replicas, and the streams to them.
        share: what is told to other routers, and learnt from them.
        reporter: makes what is told to the Hub.
        tracer: of this process; None, as at the start, where nothing is traced.
        passport: what replicas are shown; nothing, as at the start, where they ask for nothing.
        may_sleep: there may be no replica at all, until somebody asks for something.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        settings: RouterConfig,
        *,
        model_name: str = "",
        clock: Callable[[], float] = time.monotonic,
        timing: StreamTiming | None = None,
        telemetry: TelemetryConfig | None = None,
    ) -> None:
        """Start without members.

        Args:
            tokenizer: turns output tokens into text.
            settings: limits and policies.
            model_name: a label of the metrics.
            clock: monotonic seconds.
            timing: of the streams; None for what the settings say.
            telemetry: what is recorded of requests; None for the defaults.
        """
        self.id = uuid.uuid4().hex
        self.tracer: Tracer | None = None
        self.passport = Passport()
        self._model_name = model_name
        self._settings = settings
        self._clock = clock
        self._gate = Gate()
        timing = timing or _stream_timing(settings)
        self.members = Members(_connector(self, clock, timing, lambda: self._pump.soon()))
        self._views = partial(_recent, self.members, clock)
        self._open: dict[Flight, bool] = {}
        self._none_open = asyncio.Event()
        self._none_open.set()
        self.may_sleep = self._closed = False
        counters = VirtualCounters(BURST)
        self._accounts = Accounts(counters, Admission(_limits(settings)), StartRate(), FirstToken())
        self._queue = _queue(settings, counters)
        label = self.id[:8]
        labels = {"model_name": model_name, "router": label}
        tenants = TenantMetrics(labels, self._queue, counters)
        self.metrics = RouterMetrics(model_name, self.replicas, router_id=label, tenants=tenants)
        self._telemetry = telemetry or TelemetryConfig()
        self._recorder = Recorder(self.metrics, self._telemetry)
        self.reporter = Reporter(
            self.id,
            model_name,
            self._recorder,
            self._queue,
            self.replicas,
            clock,
            lambda: self._gate.guard,
        )
        self._support = FlightSupport(tokenizer, self._recorder, clock, self._ended)
        self._placement = _placement(settings, self.id)
        self._hedging = Hedging() if settings.hedging else None
        self._budget = RetryBudget(settings.moves_share, settings.moves_floor)
        self.share = SharedUse(counters, self._accounts.admission, self._queue)
        self._pump = Pump(self._parts())
        self._house = asyncio.create_task(self._keep_house(), name="housekeeping")

    def update_members(self, members: Mapping[str, str]) -> None:
        """Replica id → endpoint, of all members; others finish what they run and are left."""
        self.members.update(members, join=not self._closed)

    def replicas(self) -> list[ReplicaView]:
        """What is known of each member now."""
        return self.members.views()

    @property
    def max_sequence_tokens(self) -> int | None:
        """Prompt plus output that any replica can hold; None while no replica is ready."""
        return placement.max_sequence_tokens(self.replicas())

    @property
    def guard(self) -> GuardState | None:
        """The Guard's newest state that is obeyed; None while there was none."""
        return self._gate.guard

    def obey(self, state: GuardState) -> None:
        """Put the Guard's Controls in force, here and at every replica, if the state is newer."""
        if not self._gate.obey(state):
            return
        controls = state.controls
        self._queue.fair = controls.fair
        self._placement.affinity = controls.affinity
        if self._hedging is not None:
            self._hedging.on = controls.hedging
        self.members.tell(controls)
        self._pump.soon()

    def submit(self, ask: Ask) -> Flight:
        """Let a request in; the flight waits for a replica, see ``Flight.placed``.

        Raises:
            RateLimited: the tenant is over one of its limits.
            Overloaded: this router is full, or the Guard does not let it in.
            Unavailable: the service is stopping, or the deadline cannot be met.
            InvalidRequest: no replica could ever hold it.
        """
        deadline_s = ask.deadline_s
        if deadline_s is None:
            deadline_s = getattr(self._settings.deadlines, ask.request.priority.name.lower())
        journey = None
        if self.tracer is not None:
            ask, journey = start_journey(self.tracer, self._model_name, ask, self._clock())
        flight = Flight(ask, deadline_s, self._support, journey)
        self._open[flight] = False
        self._none_open.clear()
        ticket = flight.first_ticket()
        try:
            ticket.prediction = self._admit(ticket, deadline_s)
        except RequestError as error:
            flight.fail(error)
            raise
        if journey is not None:
            journey.admitted(ticket, self._clock())
        self._open[flight] = True
        self._pump.push(ticket)
        return flight

    def check_integrity(self) -> None:
        """Raises AssertionError unless every request is accounted for exactly once."""
        ended = sum(self.metrics.ended.values())
        if self.metrics.started != ended + len(self._open):
            raise AssertionError(
                f"{self.metrics.started} requests started, {ended} ended, {len(self._open)} open"
            )
        if not self._open and any(stream.dispatch.num_open for stream in self.members):
            raise AssertionError("a stream has open handles, but no request is open")
        if not self._open and len(self._queue):
            raise AssertionError("something waits for a replica, but no request is open")

    async def drain(self, grace_s: float) -> None:
        """Let nobody in any more, and wait until all have ended, or ``grace_s`` seconds."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._none_open.wait(), grace_s)

    async def close(self) -> None:
        """End all requests as cancelled, and all streams."""
        self._closed = True
        self._house.cancel()
        for flight in list(self._open):
            flight.cancel(_shutting_down())
        await self.members.close()

    def _parts(self) -> PumpParts:
        settings = self._settings
        return PumpParts(
            queue=self._queue,
            placement=self._placement,
            failover=Failover(settings.max_moves, self._budget, self.members.fate),
            accounts=self._accounts,
            metrics=self.metrics,
            streams=self.members.streams,
            views=self._views,
            hedging=self._hedging,
            clock=self._clock,
        )

    def _admit(self, ticket: Ticket, deadline_s: float) -> Prediction | None:
        """Check all that can turn a request away at once, and open its account.

        Returns how long it is expected to wait, if anybody can tell.
        """
        if self._closed:
            raise _shutting_down()
        ask, now, views = ticket.flight.ask, self._clock(), self._views()
        self._gate.check(ask.request, now)
        request, num_prompt = ask.request, len(ask.request.prompt)
        need = ticket.need(block_size=0)  # its blocks do not matter yet
        max_total = need.max_total
        if placement.fits_nowhere(views, max_total):
            limit = placement.max_sequence_tokens(views) or 0
            raise InvalidRequest(
                f"prompt and max_tokens make {max_total} tokens of {limit} at most",
                param="prompt" if num_prompt >= limit else "max_tokens",
                code="context_length_exceeded",
            )
        ahead, _ = self._queue.ahead(request.priority, request.tenant, request.weight, now)
        prediction = self._accounts.first_token.predict(
            ahead,
            placement.free_credits(views, STALE_AFTER_S, ahead + 1),
            self._accounts.starts.per_second(now),
            num_prompt,
            max((view.tokens_per_s or 0.0 for view in views), default=None),
        )
        predicted_s = None if prediction is None else prediction.seconds
        self._gate.check_wait(predicted_s, self._telemetry.first_token_target_s)
        backlog = Backlog(
            open_requests=len(self._open) - 1,
            queued=len(self._queue),
            queued_tokens=self._queue.num_tokens,
            predicted_s=predicted_s,
            retry_after_s=lambda: placement.retry_after_s(views, self._queue.num_tokens),
            waits=len(self._queue) > 0
            or not any(self._placement.has_room(view, need) for view in views),
        )
        self._accounts.admission.check(ask.tenant, request, deadline_s, backlog, now)
        self._accounts.admission.started(ask.tenant, num_prompt, now)
        self._budget.started(request.tenant, now)
        return prediction

    def _ended(self, flight: Flight) -> None:
        if self._open.pop(flight):
            self._accounts.admission.ended(flight.ask.tenant.name)
        if not self._open:
            self._none_open.set()
        self._pump.soon()

    def _fail_late_ones(self, now: float) -> None:
        """End who has a seat, but no token within the deadline."""
        late = [
            flight
            for flight in self._open
            if flight.first_token_at is None and now >= flight.expires_at
        ]
        for flight in late:
            flight.fail(DeadlineExceeded("no first token came within the deadline"))

    async def _keep_house(self) -> NoReturn:
        """Notice what makes no noise: silence, deadlines, and that nobody comes."""
        last = self._clock()
        while True:
            await asyncio.sleep(TICK_S if self._open else IDLE_TICK_S)
            now = self._clock()
            try:
                for stream in self.members:
                    stream.watch(now - last)
                if self._gate.controls.demote_late:
                    self._queue.demote(now, self._telemetry.first_token_target_s)
                wait_s = self._settings.wait_for_replica_s
                self._pump.tick(now, wait_s, may_sleep=self.may_sleep)
                self._fail_late_ones(now)
                self._recorder.tick(self._queue.backlogged(), now, now - last)
            except Exception:
                logger.exception("housekeeping failed; it goes on")
            last = now


def _connector(
    router: Router,
    clock: Callable[[], float],
    timing: StreamTiming,
    on_news: Callable[[], None],
) -> Callable[[str, str], ReplicaStream]:
    """Makes streams, each to a replica at an endpoint."""

    def connect(replica_id: str, endpoint: str) -> ReplicaStream:
        visitor = Visitor(router.id, router.passport)
        return ReplicaStream(
            replica_id, endpoint, visitor=visitor, clock=clock, timing=timing, on_news=on_news
        )

    return connect


def _recent(members: Members, clock: Callable[[], float]) -> list[ReplicaView]:
    """What is known of each member, for placement."""
    return members.recent(clock(), STALE_AFTER_S)


def _limits(settings: RouterConfig) -> AdmissionLimits:
    return AdmissionLimits(settings.max_requests, settings.max_queued, settings.max_queued_tokens)


def _queue(settings: RouterConfig, counters: VirtualCounters) -> FairQueue[Ticket]:
    return FairQueue(counters, fair=settings.fair, promote_after_s=settings.promote_after_s)


def _placement(settings: RouterConfig, seed: str) -> Placement:
    return Placement(
        settings.placement,
        look_ahead=settings.look_ahead,
        stale_after_s=STALE_AFTER_S,
        random=random.Random(seed),
    )


def _stream_timing(settings: RouterConfig) -> StreamTiming:
    """How patient the streams are."""
    return StreamTiming(silence_s=settings.silence_s, stuck_after_s=settings.stuck_after_s)


def _shutting_down() -> RequestError:
    return Unavailable("the service is shutting down", code="shutting_down")
