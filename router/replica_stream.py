"""A router's stream to one replica: submissions go out, answers, tokens and load come in.

Owns the connection and what is still to be sent; a task reads, a task writes, and there is no
task per request. Who hears of what came in is the business of ``dispatch``.

    CONNECTING ──Welcome──► READY ──break──► LOST ──backoff──► CONNECTING …      until CLOSED

A break loses every open handle: a new stream is a stranger to the worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc.aio

from chairlift.cluster import wire
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.proto import worker_pb2_grpc as pb_grpc
from chairlift.cluster.protocol import PROTOCOL_VERSION, Answer, Refusal, ReplicaInfo, Submission
from chairlift.router.dispatch import Dispatch, Listener, StreamLost
from chairlift.router.placement import ReplicaView

if TYPE_CHECKING:
    from typing import TypeAlias

    # At run time grpc's class takes no parameters.
    _Call: TypeAlias = grpc.aio.StreamStreamCall[pb.ToWorker, pb.FromWorker]

__all__ = ["ReplicaStream", "StreamState", "StreamTiming"]

logger = logging.getLogger(__name__)

MAX_UNSENT_SUBMITS = 1024
MAX_MESSAGE_TOKENS = 1 << 20
"""Prompt tokens after which a message takes no further submission; keeps messages small enough
for the worker's limit, and cancellations from waiting behind megabytes."""

GRPC_OPTIONS = (
    ("grpc.max_receive_message_length", -1),  # a frame is as long as the tokens that are due
    # Every connection attempt stands for itself; the pause between them is ours to choose.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


class StreamState(enum.Enum):
    """See the module's picture."""

    CONNECTING = "connecting"
    READY = "ready"
    LOST = "lost"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class StreamTiming:
    """Seconds: pauses between attempts to connect, doubling; silence that counts as a break."""

    first_backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    silence_s: float = 10.0


class ReplicaStream:
    """The stream to the replica at ``endpoint``; belongs to one event loop.

    Attributes:
        state: see the module's picture.
        info: what the replica said of itself when it last welcomed us.
    """

    def __init__(
        self,
        replica_id: str,
        endpoint: str,
        *,
        router_id: str,
        clock: Callable[[], float],
        timing: StreamTiming,
    ) -> None:
        self.replica_id = replica_id
        self.endpoint = endpoint
        self.state = StreamState.CONNECTING
        self.info: ReplicaInfo | None = None
        self._router_id = router_id
        self._clock = clock
        self._timing = timing
        self._dispatch = Dispatch(clock)
        self._submits: deque[pb.Submit] = deque()
        self._cancels: list[int] = []
        self._wake = asyncio.Event()
        self._retiring = False
        self.task = asyncio.create_task(self._run(), name=f"stream to {replica_id}")

    async def submit(self, submission: Submission, listener: Listener) -> Answer:
        """Send a request, and wait for the replica's word on it.

        ``listener`` hears of each of its handles once the answer is yes, which may be before
        this returns. Cancelling this call cancels the request at the replica.

        Raises:
            StreamLost: there is no answer; whether the request ran is not known.
        """
        if self.state is not StreamState.READY:
            raise StreamLost(f"no stream to {self.replica_id}")
        if len(self._submits) >= MAX_UNSENT_SUBMITS:
            return Answer(submission.handle, Refusal.QUEUE_FULL, "the stream is behind")
        self._submits.append(wire.submission_to_wire(submission))
        answer = self._dispatch.expect(submission, listener)
        self._wake.set()
        try:
            return await answer
        except asyncio.CancelledError:
            self.cancel(range(submission.handle, submission.handle + submission.request.n))
            raise

    def cancel(self, handles: Iterable[int]) -> None:
        """Stop these at the replica; their listeners hear no more of them."""
        handles = tuple(handles)
        self._dispatch.forget(handles)
        if self.state is StreamState.READY:
            self._cancels.extend(handles)
            self._wake.set()
        self._end_if_retired()

    def retire(self) -> None:
        """Take no new requests; close when the open ones have ended, or at once if broken."""
        self._retiring = True
        self._end_if_retired()

    async def close(self) -> None:
        """Close now; open handles are lost."""
        self.task.cancel()
        await asyncio.wait([self.task])

    def view(self) -> ReplicaView:
        """What is known of the replica now."""
        dispatch = self._dispatch
        return ReplicaView(
            replica_id=self.replica_id,
            ready=self.state is StreamState.READY and not self._retiring,
            info=self.info,
            load=dispatch.load,
            load_age_s=None if dispatch.load is None else self._clock() - dispatch.load_at,
            sent_sequences=dispatch.sent.sequences,
            sent_tokens=dispatch.sent.tokens,
            tokens_per_s=dispatch.speed.tokens_per_s,
        )

    @property
    def num_open(self) -> int:
        """Handles that have a listener or wait for an answer."""
        return self._dispatch.num_open

    def _end_if_retired(self) -> None:
        if self._retiring and not self._dispatch.num_open:
            self.task.cancel()

    async def _run(self) -> None:
        backoff_s = self._timing.first_backoff_s
        try:
            while True:
                self.state = StreamState.CONNECTING
                reason = await self._attempt()
                if self.state is StreamState.READY:
                    backoff_s = self._timing.first_backoff_s
                    logger.warning("stream to %s broke: %s", self.replica_id, reason)
                self._break(StreamState.LOST, reason)
                if self._retiring:
                    return
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, self._timing.max_backoff_s)
        finally:
            self._break(StreamState.CLOSED, "the stream was closed")

    async def _attempt(self) -> str:
        """Connect and talk until that ends; returns why it did."""
        reason = "the replica ended it"
        try:
            await self._talk()
        except* grpc.aio.AioRpcError as group:
            reason = _describe(group)
        except* TimeoutError:
            reason = f"silent for {self._timing.silence_s:g} s"
        except* ValueError as group:
            reason = f"malformed message: {group.exceptions[0]}"
        except* Exception:
            # A fault of ours must not cost the replica for good.
            logger.exception("stream to %s", self.replica_id)
            reason = "internal error"
        return reason

    async def _talk(self) -> None:
        async with grpc.aio.insecure_channel(self.endpoint, options=GRPC_OPTIONS) as channel:
            call: _Call = pb_grpc.WorkerStub(channel).Stream()
            hello = pb.Hello(router_id=self._router_id, protocol_version=PROTOCOL_VERSION)
            message = await self._read(call, first=pb.ToWorker(hello=hello))
            if message is None or not message.HasField("welcome"):
                raise ValueError("the first message is no Welcome")
            self.info = wire.welcome_from_wire(message.welcome)
            self.state = StreamState.READY
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(self._write(call))
                while message is not None:
                    self._dispatch.receive(message)
                    self._end_if_retired()
                    message = await self._read(call)
                writer.cancel()

    async def _read(self, call: _Call, first: pb.ToWorker | None = None) -> pb.FromWorker | None:
        """The next message, None at the end; raises TimeoutError when none comes."""
        async with asyncio.timeout(self._timing.silence_s):
            if first is not None:
                await call.write(first)
            message = await call.read()
        return message if isinstance(message, pb.FromWorker) else None

    async def _write(self, call: _Call) -> None:
        # When the stream breaks, the reader is told as well, and acts.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._submits or self._cancels:
                    await call.write(self._next_message())

    def _next_message(self) -> pb.ToWorker:
        submits, tokens = [], 0
        while self._submits and tokens + len(self._submits[0].prompt) <= MAX_MESSAGE_TOKENS:
            submits.append(self._submits.popleft())
            tokens += len(submits[-1].prompt)
        if self._submits and not submits:
            submits.append(self._submits.popleft())
        message = pb.ToWorker(submits=submits, cancels=self._cancels)
        self._cancels.clear()
        return message

    def _break(self, state: StreamState, reason: str) -> None:
        """Everything that was under way is lost, and what was known is known no more."""
        self.state = state
        self._submits.clear()
        self._cancels.clear()
        broken, self._dispatch = self._dispatch, Dispatch(self._clock)
        broken.lose(reason)


def _describe(group: BaseExceptionGroup[grpc.aio.AioRpcError]) -> str:
    error = group.exceptions[0]
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
