"""Rank 0's end of the data plane: the gRPC service that routers connect to.

Owns one stream per router: reads its submissions, cancellations and Controls into the Intake, and
tells it what each step did. Owns also the load reports, and the names of all cached blocks as far
as the engine has told them. It knows nothing of models or of scheduling.

    router ──ToWorker──►  _read ──► Intake                                       (at once)
    router ◄─FromWorker── _write ◄── Outbox ◄── _deliver ◄── publish    (by the engine, once a step)

A step's news leave at once; where the network is behind, they are joined in the stream's outbox.
A load report is made anew, with the next stamp, by each step, by each heartbeat, and when streams
come and go or the replica begins to leave. So a report that is old is known to be.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import TYPE_CHECKING, NoReturn

import grpc.aio

from chairlift.cluster import wire
from chairlift.cluster.cluster_token import ClusterToken
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.proto import worker_pb2_grpc as pb_grpc
from chairlift.cluster.protocol import (
    PROTOCOL_VERSION,
    Answer,
    LoadReport,
    Refusal,
    ReplicaInfo,
)
from chairlift.workers.cluster_guard import ClusterGuard
from chairlift.workers.engine import StepOutput
from chairlift.workers.intake import Intake
from chairlift.workers.ledger import Ledger
from chairlift.workers.ledger_server import LedgerServer
from chairlift.workers.outbox import Outbox
from chairlift.workers.submitting import Submitting
from chairlift.workers.visits import Visits

__all__ = ["WorkerServer"]

logger = logging.getLogger(__name__)

MAX_UNSENT_ANSWERS = 1024
"""A router that has this many answers to read is not read from until it reads."""

GRPC_OPTIONS = (
    ("grpc.so_reuseport", 0),
    # A prompt token takes at most five bytes, so this fits several prompts of a million tokens.
    ("grpc.max_receive_message_length", 64 * 1024**2),
    # Notice a router whose machine vanished, and bear with routers that check on this one.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)

if TYPE_CHECKING:
    from typing import TypeAlias

    # At run time grpc's class takes no parameters.
    _Context: TypeAlias = grpc.aio.ServicerContext[pb.ToWorker, pb.FromWorker]


class WorkerServer(pb_grpc.WorkerServicer):
    """Serves ``chairlift.worker.v1.Worker`` for one replica.

    Everything but ``publish`` belongs to the event loop that ``start`` ran in.
    """

    def __init__(
        self,
        info: ReplicaInfo,
        intake: Intake,
        *,
        step_age: Callable[[], float] = lambda: 0.0,
        heartbeat_s: float = 0.25,
        visits: Visits | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        """Serve what ``info`` says.

        Args:
            info: told to each router.
            intake: takes what routers send.
            step_age: seconds that the present step has taken so far.
            heartbeat_s: every stream gets a new load report at least this often.
            visits: what is to be traced; None where nothing is.
            ledger: handed out to who asks for it; None where none is kept.
        """
        self._info = info
        self._intake = intake
        self._step_age = step_age
        self._heartbeat_s = heartbeat_s
        self._visits = visits
        self._ledger = ledger
        self._load = LoadReport(blocks_total=info.blocks_total, routers=0)
        self._names: set[int] = set()
        self._draining = False
        self._outboxes: dict[int, Outbox] = {}
        self._origins = count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: grpc.aio.Server | None = None
        self._heart: asyncio.Task[NoReturn] | None = None

    async def start(
        self,
        host: str = "127.0.0.1",
        token: ClusterToken | None = None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> str:
        """Listens on a free port of ``host``; returns ``"host:port"``.

        Args:
            host: the address.
            token: what every call has to carry; None where whoever reaches the port may call.
            credentials: to shake hands with; None for plain text.
        """
        self._loop = asyncio.get_running_loop()
        name = f"[{host}]" if ":" in host else host
        guards = [] if token is None else [ClusterGuard(token)]
        self._server = grpc.aio.server(options=GRPC_OPTIONS, interceptors=guards)
        pb_grpc.add_WorkerServicer_to_server(self, self._server)
        if self._ledger is not None:
            pb_grpc.add_LedgersServicer_to_server(LedgerServer(self._ledger), self._server)
        if credentials is None:
            port = self._server.add_insecure_port(f"{name}:0")
        else:
            port = self._server.add_secure_port(f"{name}:0", credentials)
        await self._server.start()
        self._heart = asyncio.create_task(self._beat())
        return f"{name}:{port}"

    async def stop(self, grace_s: float = 1.0) -> None:
        """Ends all streams, after what they were still to be told; then cuts off what is left."""
        if self._server is None or self._heart is None:
            return
        self._heart.cancel()
        for outbox in self._outboxes.values():
            outbox.close()
        await self._server.stop(grace_s)

    def drain(self) -> None:
        """Tell all routers that the replica leaves; streams go on until ``stop``."""
        self._draining = True
        self._announce()

    def has_told(self, step: int) -> bool:
        """Whether all that happened up to this step has been written to every stream."""
        return self._load.step >= step and all(each.told for each in self._outboxes.values())

    def publish(self, output: StepOutput) -> None:
        """Takes what a step did; for the engine's thread, never blocks."""
        if self._loop is not None:
            # RuntimeError: the loop is closed, so nobody is left to tell.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._deliver, output)

    async def Stream(self, request_iterator: AsyncIterator[pb.ToWorker], context: _Context) -> None:
        """One router's stream, from Hello to its end."""
        first = await context.read()
        if not _is_hello(first):
            reason = f"the first message must be a Hello of protocol version {PROTOCOL_VERSION}"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, reason)
        origin = next(self._origins)
        outbox = Outbox(self._info.blocks_total)
        self._outboxes[origin] = outbox
        self._announce()
        submitting = Submitting(self._intake, origin, outbox.answer)
        reader = asyncio.create_task(self._read(origin, submitting, outbox, first, context))
        reader.add_done_callback(lambda _: outbox.close())
        try:
            beginning = self._take(outbox)
            beginning.welcome.CopyFrom(wire.welcome_to_wire(self._info))
            await context.write(beginning)
            await self._write(outbox, context)
            if reader.done() and (fault := reader.exception()) is not None:
                logger.warning("stream %d: cannot read on: %s", origin, fault)
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(fault))
        finally:
            reader.cancel()
            del self._outboxes[origin]
            submitting.leave()
            self._announce()

    async def _read(
        self,
        origin: int,
        submitting: Submitting,
        outbox: Outbox,
        first: pb.ToWorker,
        context: _Context,
    ) -> None:
        message = first
        while isinstance(message, pb.ToWorker):  # else it is grpc's mark of the end
            self._receive(origin, submitting, outbox, message)
            await outbox.until_answers_at_most(MAX_UNSENT_ANSWERS)
            message = await context.read()

    def _receive(
        self, origin: int, submitting: Submitting, outbox: Outbox, message: pb.ToWorker
    ) -> None:
        for submit in message.submits:
            try:
                submission = wire.submission_from_wire(submit)
            except ValueError as error:
                outbox.answer(Answer(submit.handle, Refusal.INVALID, str(error)))
            else:
                submitting.submit(submission)
        if message.cancels:
            submitting.cancel(tuple(message.cancels))
        if message.HasField("controls"):
            try:
                self._intake.set_controls(wire.controls_from_wire(message.controls))
            except ValueError as error:
                logger.warning("stream %d: ignored malformed controls: %s", origin, error)

    async def _write(self, outbox: Outbox, context: _Context) -> None:
        while await outbox.wait():
            await context.write(self._take(outbox))

    def _take(self, outbox: Outbox) -> pb.FromWorker:
        return outbox.take(self._load, self._names)

    def _deliver(self, output: StepOutput) -> None:
        news = _matters(self._load, output.load)
        self._renew(output.load, step_age_s=0.0)
        if output.blocks is not None:
            self._names.difference_update(output.blocks.removed)
            self._names.update(output.blocks.added)
        for origin, outbox in self._outboxes.items():
            if output.blocks is not None:
                outbox.note(output.blocks)
            if deltas := output.deltas.get(origin):
                outbox.add(deltas)
            elif news:
                outbox.remind()

    async def _beat(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            self._announce()
            if self._visits is not None:
                self._visits.tell()

    def _announce(self) -> None:
        """Let every stream have a new load report."""
        self._renew(self._load, self._step_age())
        for outbox in self._outboxes.values():
            outbox.remind()

    def _renew(self, load: LoadReport, step_age_s: float) -> None:
        """Make the report anew, from what the engine says and what only the server knows."""
        self._load = load._replace(
            stamp=self._load.stamp + 1,
            step_age_s=step_age_s,
            routers=len(self._outboxes),
            draining=self._draining,
        )


def _is_hello(message: object) -> bool:
    """Whether a stream may begin with it; at the end of a stream there is no message at all."""
    return (
        isinstance(message, pb.ToWorker)
        and message.HasField("hello")
        and message.hello.protocol_version == PROTOCOL_VERSION
    )


def _matters(old: LoadReport, new: LoadReport) -> bool:
    """Whether a router that has nothing else to hear needs to know of ``new`` before a heartbeat.

    The counters of steps and tokens grow with every step; on their own they can wait.
    """
    return (
        (old.running, old.waiting, old.waiting_tokens, old.blocks_used)
        != (new.running, new.waiting, new.waiting_tokens, new.blocks_used)
    )  # fmt: skip
