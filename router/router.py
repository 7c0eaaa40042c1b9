"""The router: who gets in, to which replica, and what happens if that replica refuses.

Owns the members and their streams, the bound on open requests, and the account of how each
request ended. Placement's rule is in ``placement``, a request's own life in ``flight``. It knows
nothing of HTTP, of models or of Ray.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from itertools import count

from chairlift.cluster.errors import InvalidRequest, Overloaded, RequestError, Unavailable
from chairlift.cluster.protocol import Answer, Refusal, Request, Submission
from chairlift.router import placement
from chairlift.router.dispatch import StreamLost
from chairlift.router.flight import Flight, FlightSupport
from chairlift.router.metrics import RouterMetrics
from chairlift.router.placement import ReplicaView
from chairlift.router.replica_stream import ReplicaStream, StreamTiming
from chairlift.router.tokenizer import Tokenizer

__all__ = ["Router"]


class Router:
    """Takes requests to replicas; belongs to one event loop.

    Attributes:
        metrics: counts and latencies of all requests.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_requests: int,
        model_name: str = "",
        clock: Callable[[], float] = time.monotonic,
        stale_after_s: float = 5.0,
        timing: StreamTiming | None = None,
    ) -> None:
        """Start without members.

        Args:
            tokenizer: turns output tokens into text.
            max_requests: open requests at most; more are refused.
            model_name: a label of the metrics.
            clock: monotonic seconds.
            stale_after_s: age after which a load report says nothing.
            timing: of the streams; None for the usual one.
        """
        self.metrics = RouterMetrics(model_name, self.replicas)
        self._max_requests = max_requests
        self._clock = clock
        self._stale_after_s = stale_after_s
        self._timing = timing or StreamTiming()
        self._id = uuid.uuid4().hex
        self._support = FlightSupport(tokenizer, self.metrics, clock, self._place, self._ended)
        self._streams: dict[str, ReplicaStream] = {}
        self._retiring: set[ReplicaStream] = set()
        self._open: set[Flight] = set()
        self._next_handle = 1
        self._turns = count()
        self._closed = False

    def update_members(self, members: Mapping[str, str]) -> None:
        """Replica id → endpoint, of all members; others finish what they run and are left."""
        for replica_id, stream in list(self._streams.items()):
            if members.get(replica_id) != stream.endpoint:
                self._retire(self._streams.pop(replica_id))
        for replica_id, endpoint in members.items():
            if replica_id not in self._streams and not self._closed:
                self._streams[replica_id] = ReplicaStream(
                    replica_id,
                    endpoint,
                    router_id=self._id,
                    clock=self._clock,
                    timing=self._timing,
                )

    def replicas(self) -> list[ReplicaView]:
        """What is known of each member now."""
        return [stream.view() for stream in self._streams.values()]

    @property
    def max_sequence_tokens(self) -> int | None:
        """Prompt plus output that any replica can hold; None while no replica is ready."""
        return placement.max_sequence_tokens(self.replicas())

    async def submit(
        self, request: Request, stop: tuple[str, ...] = (), *, continues: bool = False
    ) -> Flight:
        """Place a request; the flight that is returned has been accepted by a replica.

        Args:
            request: what is asked for; valid.
            stop: texts, none empty, that end a choice before them.
            continues: the output goes on from the prompt's text, so a space between both is kept
                as a part of it.

        Raises:
            Overloaded: this router or all replicas are full (``router_full``, ``queue_full``).
            Unavailable: no replica is there.
            InvalidRequest: the replica finds fault with it.
        """
        flight = Flight(request, stop, self._support, continues=continues)
        self.metrics.started += 1
        self._open.add(flight)
        try:
            if len(self._open) > self._max_requests:
                raise Overloaded(
                    f"this router holds {self._max_requests} requests already",
                    code="router_full",
                    retry_after_s=placement.retry_after_s(self.replicas()),
                )
            await self._place(flight)
        except BaseException as error:
            flight.reject(error)
            raise
        return flight

    def check_integrity(self) -> None:
        """Raises AssertionError unless every request is accounted for exactly once."""
        ended = sum(self.metrics.ended.values())
        if self.metrics.started != ended + len(self._open):
            raise AssertionError(
                f"{self.metrics.started} requests started, {ended} ended, {len(self._open)} open"
            )
        streams = [*self._streams.values(), *self._retiring]
        if not self._open and any(stream.num_open for stream in streams):
            raise AssertionError("a stream has open handles, but no request is open")

    async def close(self) -> None:
        """End all requests as cancelled, and all streams."""
        self._closed = True
        for flight in list(self._open):
            flight.cancel(_shutting_down())
        streams = [*self._streams.values(), *self._retiring]
        self._streams.clear()
        await asyncio.gather(*(stream.close() for stream in streams))

    def _retire(self, stream: ReplicaStream) -> None:
        self._retiring.add(stream)
        stream.task.add_done_callback(lambda _: self._retiring.discard(stream))
        stream.retire()

    def _ended(self, flight: Flight) -> None:
        self._open.discard(flight)

    async def _place(self, flight: Flight) -> None:
        """Offer the flight to one replica after the other, the best first, until one accepts."""
        refused = False
        views = self.replicas()
        for view in placement.candidates(views, next(self._turns), self._stale_after_s):
            answer = await self._offer(flight, view.replica_id)
            if flight.outcome is not None:
                raise _shutting_down()
            if answer is None or answer.refusal is Refusal.DRAINING:
                continue
            if answer.refusal is None:
                flight.placements += 1
                return
            if answer.refusal is not Refusal.QUEUE_FULL:
                raise _invalid(flight.request, view, answer)
            refused = True
        if refused:
            raise Overloaded(
                "the queues of all replicas are full",
                code="queue_full",
                retry_after_s=placement.retry_after_s(self.replicas()),
            )
        raise _shutting_down() if self._closed else Unavailable("no replica is ready")

    async def _offer(self, flight: Flight, replica_id: str) -> Answer | None:
        """The replica's answer; None when it has gone in the meantime."""
        stream = self._streams.get(replica_id)
        if stream is None:
            return None
        handle, self._next_handle = self._next_handle, self._next_handle + flight.request.n
        flight.attach(stream, handle)
        try:
            return await stream.submit(Submission(handle, flight.request), flight)
        except StreamLost:
            return None


def _invalid(request: Request, view: ReplicaView, answer: Answer) -> RequestError:
    if answer.refusal is Refusal.TOO_LONG:
        limit = view.info.max_sequence_tokens if view.info is not None else 0
        param = "prompt" if len(request.prompt) >= limit else "max_tokens"
        return InvalidRequest(answer.detail, param=param, code="context_length_exceeded")
    field, colon, _ = answer.detail.partition(":")  # the field at fault stands before the colon
    return InvalidRequest(answer.detail, param=field if colon else None)


def _shutting_down() -> RequestError:
    return Unavailable("the service is shutting down", code="shutting_down")
