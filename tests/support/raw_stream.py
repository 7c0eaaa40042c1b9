"""A router's end of a worker's stream, spoken by a raw stub, message by message."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc

from chairlift.cluster import wire, wire_frame
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.proto import worker_pb2_grpc as pb_grpc
from chairlift.cluster.protocol import (
    PROTOCOL_VERSION,
    BlockEvents,
    Delta,
    FinishReason,
    LoadReport,
)
from support.engines import submission

HELLO = pb.ToWorker(hello=pb.Hello(router_id="test", protocol_version=PROTOCOL_VERSION))


class RawStream:
    """One stream, and what was read from it."""

    def __init__(self, call) -> None:
        self.call = call
        self.answers: dict[int, tuple[int, str]] = {}
        self.deltas: list[Delta] = []
        self.tokens: dict[int, list[int]] = {}
        self.finishes: dict[int, FinishReason] = {}
        self.load: LoadReport | None = None
        self.events: list[BlockEvents] = []
        self.names: set[int] = set()

    async def send(self, *submits: pb.Submit, cancels: tuple[int, ...] = ()) -> None:
        await self.call.write(pb.ToWorker(submits=submits, cancels=cancels))

    async def read(self) -> pb.FromWorker | None:
        """One message, noted; None at the end of the stream."""
        async with asyncio.timeout(20.0):
            message = await self.call.read()
        if message is grpc.aio.EOF:
            return None
        for answer in message.answers:
            assert answer.handle not in self.answers
            self.answers[answer.handle] = (answer.refusal, answer.detail)
        if message.HasField("frame"):
            frame = wire_frame.frame_from_wire(message.frame)
            assert self.load is None or frame.load.stamp >= self.load.stamp
            self.load = frame.load
            for delta in frame.deltas:
                self._note(delta)
            if frame.blocks is not None:
                self._note_names(frame.blocks)
        return message

    async def read_until(self, condition: Callable[[], Any]) -> None:
        async with asyncio.timeout(30.0):  # heartbeats go on while nothing else does
            while not condition():
                assert await self.read() is not None, "the stream ended"

    async def read_to_end(self) -> None:
        async with asyncio.timeout(30.0):
            while await self.read() is not None:
                pass

    def _note(self, delta: Delta) -> None:
        assert delta.handle not in self.finishes, "news after the end"
        self.deltas.append(delta)
        self.tokens.setdefault(delta.handle, []).extend(delta.tokens)
        if delta.finish is not None:
            self.finishes[delta.handle] = delta.finish

    def _note_names(self, events: BlockEvents) -> None:
        assert events.reset or self.names.isdisjoint(events.added)
        assert self.names.issuperset(events.removed)
        self.events.append(events)
        known = set() if events.reset else self.names - set(events.removed)
        self.names = known | set(events.added)


@asynccontextmanager
async def raw_stream(endpoint: str, first: pb.ToWorker = HELLO) -> AsyncIterator[RawStream]:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        stream = RawStream(pb_grpc.WorkerStub(channel).Stream())
        await stream.call.write(first)
        yield stream


def submit(handle: int, *args, **kwargs) -> pb.Submit:
    """As ``support.engines.submission`` takes it."""
    return wire.submission_to_wire(submission(handle, *args, **kwargs))
