"""Rank 0's end of the data plane: the gRPC service that routers connect to.

Owns one stream per router: reads its submissions, cancellations and Controls into the Intake, and
tells it what each step did. It knows nothing of models or of scheduling.

    router ──ToWorker──►  _read ──► Intake                                       (at once)
    router ◄─FromWorker── _write ◄── _Outbox ◄── _deliver ◄── publish   (by the engine, once a step)

A step's news leave at once. Where the network is behind, the news of several steps wait in the
stream's outbox and are joined per sequence, so an outbox never holds more than the tokens of that
router's open sequences.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable
from itertools import chain, count
from typing import TYPE_CHECKING, NoReturn

import grpc.aio

from chairlift.cluster import wire, wire_frame
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.proto import worker_pb2_grpc as pb_grpc
from chairlift.cluster.protocol import (
    PROTOCOL_VERSION,
    Answer,
    Delta,
    LoadReport,
    Refusal,
    ReplicaInfo,
)
from chairlift.workers.engine import StepOutput
from chairlift.workers.intake import Intake

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

    def __init__(self, info: ReplicaInfo, intake: Intake, *, heartbeat_s: float = 1.0) -> None:
        """``heartbeat_s``: every stream gets a load report at least this often."""
        self._info = info
        self._intake = intake
        self._heartbeat_s = heartbeat_s
        self._load = LoadReport(blocks_total=info.blocks_total)
        self._outboxes: dict[int, _Outbox] = {}
        self._origins = count(1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: grpc.aio.Server | None = None
        self._heart: asyncio.Task[NoReturn] | None = None

    async def start(self, host: str = "127.0.0.1") -> str:
        """Listens on a free port of ``host``; returns ``"host:port"``."""
        self._loop = asyncio.get_running_loop()
        self._server = grpc.aio.server(options=GRPC_OPTIONS)
        pb_grpc.add_WorkerServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(f"{host}:0")
        await self._server.start()
        self._heart = asyncio.create_task(self._beat())
        return f"{host}:{port}"

    async def stop(self, grace_s: float = 1.0) -> None:
        """Ends all streams, after what they were still to be told; then cuts off what is left."""
        if self._server is None or self._heart is None:
            return
        self._heart.cancel()
        for outbox in self._outboxes.values():
            outbox.close()
        await self._server.stop(grace_s)

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
        outbox = _Outbox()
        self._outboxes[origin] = outbox
        reader = asyncio.create_task(self._read(origin, outbox, first, context))
        reader.add_done_callback(lambda _: outbox.close())
        try:
            welcome = wire.welcome_to_wire(self._info)
            await context.write(
                pb.FromWorker(welcome=welcome, frame=wire_frame.frame_to_wire((), self._load))
            )
            await self._write(outbox, context)
            if reader.done() and (fault := reader.exception()) is not None:
                logger.warning("stream %d: cannot read on: %s", origin, fault)
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(fault))
        finally:
            reader.cancel()
            del self._outboxes[origin]
            self._intake.leave(origin)

    async def _read(
        self, origin: int, outbox: _Outbox, first: pb.ToWorker, context: _Context
    ) -> None:
        message = first
        while isinstance(message, pb.ToWorker):  # else it is grpc's mark of the end
            self._receive(origin, outbox, message)
            await outbox.until_answers_at_most(MAX_UNSENT_ANSWERS)
            message = await context.read()

    def _receive(self, origin: int, outbox: _Outbox, message: pb.ToWorker) -> None:
        for submit in message.submits:
            try:
                answer = self._intake.submit(origin, wire.submission_from_wire(submit))
            except ValueError as error:
                answer = Answer(submit.handle, Refusal.INVALID, str(error))
            outbox.answer(answer)
        if message.cancels:
            self._intake.cancel(origin, tuple(message.cancels))
        if message.HasField("controls"):
            try:
                self._intake.set_controls(wire.controls_from_wire(message.controls))
            except ValueError as error:
                logger.warning("stream %d: ignored malformed controls: %s", origin, error)

    async def _write(self, outbox: _Outbox, context: _Context) -> None:
        while await outbox.wait():
            await context.write(outbox.take(self._load))

    def _deliver(self, output: StepOutput) -> None:
        news = _matters(self._load, output.load)
        self._load = output.load
        for origin, outbox in self._outboxes.items():
            if deltas := output.deltas.get(origin):
                outbox.add(deltas)
            elif news:
                outbox.remind()

    async def _beat(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._heartbeat_s)
            for outbox in self._outboxes.values():
                outbox.remind()


class _Outbox:
    """What one router has still to be told. Answers go ahead of the deltas that they allow."""

    def __init__(self) -> None:
        self._answers: list[Answer] = []
        self._deltas: dict[int, list[Delta]] = {}
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()
        self._news = False
        self._closed = False

    def answer(self, answer: Answer) -> None:
        self._answers.append(answer)
        self.remind()

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            self._deltas.setdefault(delta.handle, []).append(delta)
        self.remind()

    def remind(self) -> None:
        """Send a message soon, if only to tell the load."""
        self._news = True
        self._wake.set()

    def close(self) -> None:
        """Nothing comes after what is in here now."""
        self._closed = True
        self._wake.set()

    async def wait(self) -> bool:
        """Until there is something to send: True; or, after all was sent, until the end: False."""
        while not self._news:
            if self._closed:
                return False
            self._wake.clear()
            await self._wake.wait()
        return True

    def take(self, load: LoadReport) -> pb.FromWorker:
        """Empties the outbox into one message."""
        message = pb.FromWorker(
            answers=[wire.answer_to_wire(answer) for answer in self._answers],
            frame=wire_frame.frame_to_wire(
                [_join(deltas) for deltas in self._deltas.values()], load
            ),
        )
        self._answers.clear()
        self._deltas.clear()
        self._news = False
        self._taken.set()
        return message

    async def until_answers_at_most(self, limit: int) -> None:
        while len(self._answers) > limit:
            self._taken.clear()
            await self._taken.wait()


def _is_hello(message: object) -> bool:
    """Whether a stream may begin with it; at the end of a stream there is no message at all."""
    return (
        isinstance(message, pb.ToWorker)
        and message.HasField("hello")
        and message.hello.protocol_version == PROTOCOL_VERSION
    )


def _join(deltas: list[Delta]) -> Delta:
    """What several steps did for one sequence, as if one step had done it."""
    if len(deltas) == 1:
        return deltas[0]
    return Delta(
        handle=deltas[-1].handle,
        tokens=tuple(chain.from_iterable(delta.tokens for delta in deltas)),
        finish=deltas[-1].finish,
        cached_tokens=sum(delta.cached_tokens for delta in deltas),
        logprobs=tuple(chain.from_iterable(delta.logprobs for delta in deltas)),
        prompt_logprobs=tuple(chain.from_iterable(delta.prompt_logprobs for delta in deltas)),
    )


def _matters(old: LoadReport, new: LoadReport) -> bool:
    """Whether a router that has nothing else to hear needs to know of ``new`` before a heartbeat.

    The counters of steps and tokens grow with every step; on their own they can wait.
    """
    return (
        (old.running, old.waiting, old.waiting_tokens, old.blocks_used)
        != (new.running, new.waiting, new.waiting_tokens, new.blocks_used)
    )  # fmt: skip
