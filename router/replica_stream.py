"""A router's stream to one replica: submissions go out, answers, tokens and load come in.

Owns the connection and whether the replica at its end is in reach; a task reads, a task writes,
and there is no task per request. Who hears of what came in is the business of ``dispatch``, what
is still to be said that of ``outgoing``.

    CONNECTING ──Welcome──► READY ──break──► LOST ──backoff──► CONNECTING …      until CLOSED

A break loses every open handle: a new stream is a stranger to the worker. A replica that is silent
or stuck loses them as well, and keeps the stream: it may only have been stopped for a while, and
when it wakes it is told what nobody waits for any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc.aio

from chairlift.cluster import wire
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.proto import worker_pb2_grpc as pb_grpc
from chairlift.cluster.protocol import PROTOCOL_VERSION, ReplicaInfo, Submission
from chairlift.cluster.seldom import Seldom
from chairlift.router.dispatch import Dispatch, Listener
from chairlift.router.outgoing import Outgoing
from chairlift.router.passport import Passport
from chairlift.router.placement import ReplicaView

if TYPE_CHECKING:
    from typing import TypeAlias

    # At run time grpc's class takes no parameters.
    _Call: TypeAlias = grpc.aio.StreamStreamCall[pb.ToWorker, pb.FromWorker]

__all__ = ["ReplicaStream", "StreamState", "StreamTiming", "Visitor"]

logger = logging.getLogger(__name__)

MAX_TICK_S = 0.25
"""A longer time between two looks was our own pause, not the replica's silence."""

FAILURES_TO_TELL = 5
"""A replica that has just died is no member any more by then; so it is for people, such as a
certificate that has expired."""

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
    """Seconds.

    Attributes:
        first_backoff_s, max_backoff_s: pauses between attempts to connect, doubling.
        connect_s: an attempt without a Welcome is given up.
        silence_s: a replica that says nothing for so long is lost.
        stuck_after_s: a replica whose step takes longer is lost.
    """

    first_backoff_s: float = 0.1
    max_backoff_s: float = 5.0
    connect_s: float = 10.0
    silence_s: float = 1.5
    stuck_after_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Visitor:
    """As whom a router comes to its replicas.

    Attributes:
        router_id: its name.
        passport: what it shows to them.
    """

    router_id: str
    passport: Passport = Passport()


class ReplicaStream:
    """The stream to the replica at ``endpoint``; belongs to one event loop.

    Attributes:
        state: see the module's picture.
        info: what the replica said of itself when it last welcomed us.
        dispatch: who waits for what, and what is known of the replica; a new one for each
            connection.
        outgoing: what is still to be said to the replica.
        era: grows whenever everything that was open is lost.
        failed_attempts: to connect, one after the other; 0 while connected.
    """

    def __init__(
        self,
        replica_id: str,
        endpoint: str,
        *,
        visitor: Visitor,
        clock: Callable[[], float],
        timing: StreamTiming,
        on_news: Callable[[], None],
    ) -> None:
        """``on_news``: called after every message and every change of state."""
        self.replica_id = replica_id
        self.endpoint = endpoint
        self.state = StreamState.CONNECTING
        self.info: ReplicaInfo | None = None
        self.dispatch = Dispatch(clock)
        self.era = 0
        self.failed_attempts = 0
        self._visitor = visitor
        self._clock = clock
        self._timing = timing
        self._on_news = on_news
        self._faults = Seldom(logger)
        self.outgoing = Outgoing()
        self._retiring = False
        self._silent_s = 0.0
        self._in_reach = True
        self.task = asyncio.create_task(self._run(), name=f"stream to {replica_id}")

    def send(self, submission: Submission, listener: Listener, names: Sequence[int] = ()) -> None:
        """Send a submission; ``listener`` hears what becomes of it, later and exactly once.

        Args:
            submission: on a stream that is ready (``view``).
            listener: told of the answer, of each delta, and of a loss.
            names: of the prompt's full blocks, which the replica will soon hold.
        """
        self.outgoing.submit(submission)
        self.dispatch.expect(submission, listener)
        self.dispatch.index.expect(names, self._clock())

    def cancel(self, handles: Iterable[int]) -> None:
        """Stop these at the replica; their listeners hear no more of them."""
        handles = tuple(handles)
        self.dispatch.forget(handles)
        if self.state is StreamState.READY:
            self.outgoing.cancel(handles)
        self._end_if_retired()

    def receive(self, message: pb.FromWorker) -> None:
        """Take in what came; ValueError for a malformed message."""
        self._silent_s = 0.0
        self.dispatch.receive(message)
        self.watch(0.0)
        self._end_if_retired()
        self._on_news()

    def retire(self) -> None:
        """Take no new requests; close when the open ones have ended, or at once if broken."""
        self._retiring = True
        self._end_if_retired()

    async def close(self) -> None:
        """Close now; open handles are lost."""
        self.task.cancel()
        await asyncio.wait([self.task])

    def watch(self, elapsed_s: float) -> None:
        """Give up what the replica runs when it is silent or stuck; to be called often.

        Args:
            elapsed_s: since the last call.
        """
        self._silent_s += min(elapsed_s, MAX_TICK_S)
        load = self.dispatch.load
        step_s = 0.0 if load is None else load.step_age_s
        silent = self._silent_s > self._timing.silence_s
        self._in_reach = not silent and step_s <= self._timing.stuck_after_s
        if self.state is StreamState.READY and not self._in_reach and self.dispatch.num_open:
            self._give_up("silent" if silent else f"stuck in a step for {step_s:.0f} s")

    @property
    def ready(self) -> bool:
        """Whether the replica is in reach and takes submissions, if it has room."""
        return (
            self.state is StreamState.READY
            and self._in_reach
            and not (self._retiring or self.dispatch.leaving)
        )

    def view(self) -> ReplicaView:
        """What is known of the replica now."""
        dispatch, controls = self.dispatch, self.outgoing.controls
        return ReplicaView(
            replica_id=self.replica_id,
            ready=self.ready,
            full=dispatch.full,
            open_sequences=dispatch.num_open,
            info=self.info,
            load=dispatch.load,
            load_age_s=None if dispatch.load is None else self._clock() - dispatch.load_at,
            sent_sequences=dispatch.sent.sequences,
            sent_tokens=dispatch.sent.tokens,
            tokens_per_s=dispatch.speed.tokens_per_s,
            unstarted=dispatch.unstarted,
            max_seats=None if controls is None else controls.max_sequences,
        )

    def _end_if_retired(self) -> None:
        if self._retiring and not self.dispatch.num_open:
            self.task.cancel()

    async def _run(self) -> None:
        backoff_s = self._timing.first_backoff_s
        try:
            while True:
                self.state = StreamState.CONNECTING
                reason = await self._attempt()
                if self.task.cancelling():
                    # A TaskGroup that has errors to tell forgets that it was cancelled meanwhile.
                    raise asyncio.CancelledError
                self.failed_attempts += 1
                if self.state is StreamState.READY:
                    self.failed_attempts = 0
                    backoff_s = self._timing.first_backoff_s
                    logger.warning("stream to %s broke: %s", self.replica_id, reason)
                elif self.failed_attempts >= FAILURES_TO_TELL:
                    self._faults.warn("", f"no stream to {self.replica_id}: {reason}")
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
            reason = f"no welcome within {self._timing.connect_s:g} s"
        except* ValueError as group:
            reason = f"malformed message: {group.exceptions[0]}"
        except* Exception:
            # A fault of ours must not cost the replica for good.
            logger.exception("stream to %s", self.replica_id)
            reason = "internal error"
        return reason

    async def _talk(self) -> None:
        visitor = self._visitor
        passport = visitor.passport
        async with passport.channel(self.endpoint, GRPC_OPTIONS) as channel:
            call: _Call = pb_grpc.WorkerStub(channel).Stream(metadata=passport.metadata())
            hello = pb.Hello(router_id=visitor.router_id, protocol_version=PROTOCOL_VERSION)
            async with asyncio.timeout(self._timing.connect_s):
                await call.write(pb.ToWorker(hello=hello))
                message = await _read(call)
            if message is None or not message.HasField("welcome"):
                raise ValueError("the first message is no Welcome")
            self.info = wire.welcome_from_wire(message.welcome)
            self.state = StreamState.READY
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(_write(call, self.outgoing))
                while message is not None:
                    self.receive(message)
                    message = await _read(call)
                writer.cancel()

    def _give_up(self, reason: str) -> None:
        """Nobody waits for this replica any longer; should it wake up, it is told so."""
        logger.warning("gave up what %s runs: %s", self.replica_id, reason)
        self.era += 1
        self.outgoing.cancel(self.dispatch.lose(reason))
        self._end_if_retired()

    def _break(self, state: StreamState, reason: str) -> None:
        """Everything that was under way is lost, and what was known is known no more."""
        self.state = state
        self.era += 1
        self.outgoing.clear()
        broken, self.dispatch = self.dispatch, Dispatch(self._clock)
        broken.lose(reason)
        self._on_news()


async def _read(call: _Call) -> pb.FromWorker | None:
    """The next message; None at the end."""
    message = await call.read()
    return message if isinstance(message, pb.FromWorker) else None


async def _write(call: _Call, outgoing: Outgoing) -> None:
    # When the stream breaks, the reader is told as well, and acts.
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while True:
            await call.write(await outgoing.next())


def _describe(group: BaseExceptionGroup[grpc.aio.AioRpcError]) -> str:
    error = group.exceptions[0]
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error)
