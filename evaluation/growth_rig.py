"""A router in this process whose replicas are played by hand, so that its own work can be timed.

Owns the game: what replicas say, and which part of it all counts as the router's. The router is the
real one, with its streams, but for the network at their ends: messages are handed to them whole,
and what they have to say is taken from them. Its clock stands still, its housekeeping does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field

import tokenizers

from chairlift.cluster import wire, wire_frame
from chairlift.cluster.config_sections import RouterConfig
from chairlift.cluster.errors import RequestError
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import (
    Answer,
    Delta,
    FinishReason,
    LoadReport,
    ReplicaInfo,
    Request,
    SamplingParams,
)
from chairlift.cluster.tenants import Tenant
from chairlift.router.ask import Ask
from chairlift.router.flight import Flight
from chairlift.router.replica_stream import ReplicaStream, StreamState
from chairlift.router.router import Router
from chairlift.router.tokenizer import Tokenizer

__all__ = ["TOKENS", "Rig"]

PROMPT = tuple(range(64))
TOKENS = 16
"""Of each answer, one in a frame."""
SEATS = 4
"""Of each replica; all are taken in turn, so that a frame has news of as many."""

_LINE = 3 * SEATS
"""Of each replica; no more than so many are taken, running and waiting."""
_UNBOUNDED = 10_000_000
_TURNS = 4
"""Of the event loop, until whoever has something to do has done it."""


@dataclass(slots=True, eq=False)
class _Actor:
    """Plays one replica: what it was sent, what it runs, and what it says of itself."""

    stream: ReplicaStream
    taken: list[pb.ToWorker] = field(default_factory=list)
    open: list[int] = field(default_factory=list)
    step: int = 0

    def message(self, accepted: Sequence[int] = (), deltas: Sequence[Delta] = ()) -> pb.FromWorker:
        """What it says next; those beyond its seats wait there."""
        self.step += 1
        load = LoadReport(
            step=self.step,
            stamp=self.step,
            running=min(SEATS, len(self.open)),
            waiting=max(0, len(self.open) - SEATS),
            waiting_tokens=len(PROMPT) * max(0, len(self.open) - SEATS),
            tokens_computed=100 * self.step,
        )
        answers = [wire.answer_to_wire(Answer(handle)) for handle in accepted]
        return pb.FromWorker(answers=answers, frame=wire_frame.frame_to_wire(deltas, load))

    def take(self) -> list[int]:
        """Handles that were sent since the last time; cancelled ones are forgotten."""
        messages, self.taken = self.taken, []
        handles = [submit.handle for message in messages for submit in message.submits]
        cancelled = {handle for message in messages for handle in message.cancels}
        self.open = [each for each in (*self.open, *handles) if each not in cancelled]
        return handles

    async def listen(self) -> None:
        """As the stream's own writer does."""
        while True:
            message = await self.stream.outgoing.next()
            self.taken.append(message)


class Rig:
    """One router and its replicas; to be used within ``opened``.

    Attributes:
        seconds: of processor time that the router took in ``timed`` parts.
    """

    def __init__(self, router: Router, actors: Sequence[_Actor]) -> None:
        self.seconds = 0.0
        self._router = router
        self._actors = actors
        self._asked = 0
        self._readers: list[asyncio.Task[None]] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, replicas: int) -> AsyncIterator[Rig]:
        """Ready, with so many idle replicas."""
        settings = RouterConfig(
            max_requests=_UNBOUNDED,
            max_queued=_UNBOUNDED,
            max_queued_tokens=_UNBOUNDED * len(PROMPT),
        )
        router = Router(_tokenizer(), settings, clock=lambda: 1.0)
        router.update_members(
            {f"replica-{number:03d}": "127.0.0.1:9" for number in range(replicas)}
        )
        rig = cls(router, [_Actor(stream) for stream in router.members])
        actors = rig._actors
        for actor in actors:
            actor.stream.task.cancel()
        await asyncio.gather(*(each.stream.task for each in actors), return_exceptions=True)
        for number, actor in enumerate(actors):
            actor.stream.info = ReplicaInfo(
                replica_id=f"replica-{number:03d}",
                model="played",
                vocab_size=256,
                max_sequence_tokens=4096,
                max_sequences=SEATS,
                max_waiting=512,
                block_size=16,
                blocks_total=1024,
            )
            actor.stream.state = StreamState.READY
            actor.stream.receive(actor.message())
        listeners = [asyncio.create_task(each.listen()) for each in actors]
        try:
            yield rig
        finally:
            await router.close()
            for each in listeners:
                each.cancel()
            await asyncio.gather(*listeners, *rig._readers, return_exceptions=True)

    @contextlib.contextmanager
    def timed(self) -> Iterator[None]:
        """What happens meanwhile is the router's."""
        began = time.process_time()
        yield
        self.seconds += time.process_time() - began

    async def serve(self, requests: int, tenants: Sequence[Tenant]) -> tuple[float, float]:
        """Serve so many to their end, a seat each, round by round.

        Returns the router's seconds until they were accepted, and for their tokens and ends.
        """
        gc.collect()
        first, later = 0.0, 0.0
        seats = SEATS * len(self._actors)
        while requests > 0:
            number = min(seats, requests)
            requests -= number
            self.seconds = 0.0
            with self.timed():
                readers = [asyncio.create_task(_read(self._ask(tenants))) for _ in range(number)]
                await _turns()
            await self._accept()
            first += self.seconds
            self.seconds = 0.0
            for token in range(TOKENS):
                await self._news(FinishReason.LENGTH if token == TOKENS - 1 else None)
            later += self.seconds
            await asyncio.gather(*readers)
        return first, later

    async def crowd(self, waiting: int, tenants: Sequence[Tenant]) -> None:
        """Let so many wait in the router, behind as many as replicas take; all seats are taken."""
        for _ in range(_LINE * len(self._actors)):
            self._readers.append(asyncio.create_task(_read(self._ask(tenants))))
            await _turns()
            await self._accept()
        more = waiting - (self._asked - sum(len(each.open) for each in self._actors))
        for number in range(more):
            self._readers.append(asyncio.create_task(_read(self._ask(tenants))))
            if number % 1000 == 0:
                await _turns()
        await _turns()

    async def turns(self, number: int, tenants: Sequence[Tenant]) -> float:
        """One ends, so that the next is sent, and one comes: seconds for so many turns."""
        gc.collect()
        self.seconds = 0.0
        for turn in range(number):
            actor = self._actors[turn % len(self._actors)]
            handle = actor.open.pop(0)
            deltas = [Delta(handle, (7,) * TOKENS, FinishReason.LENGTH)]
            message = actor.message(deltas=deltas)
            with self.timed():
                actor.stream.receive(message)
                await _turns()
                self._readers.append(asyncio.create_task(_read(self._ask(tenants))))
                await _turns()
            await self._accept()
        return self.seconds

    async def rest(self, wall_s: float) -> float:
        """Seconds that its housekeeping takes in a second in which nothing happens."""
        gc.collect()
        began, since = time.process_time(), time.monotonic()
        await asyncio.sleep(wall_s)
        return (time.process_time() - began) / max(1e-9, time.monotonic() - since)

    def _ask(self, tenants: Sequence[Tenant]) -> Flight:
        self._asked += 1
        tenant = tenants[self._asked % len(tenants)]
        sampling = SamplingParams(max_tokens=TOKENS, temperature=0.0)
        request = Request(
            id=str(self._asked),
            prompt=PROMPT,
            sampling=sampling,
            tenant=tenant.name,
            priority=tenant.priority,
        )
        return self._router.submit(Ask(request, tenant, deadline_s=1e9))

    async def _accept(self) -> None:
        """Replicas take what they were sent."""
        for actor in self._actors:
            if handles := actor.take():
                message = actor.message(accepted=handles)
                with self.timed():
                    actor.stream.receive(message)
        with self.timed():
            await _turns()

    async def _news(self, finish: FinishReason | None) -> None:
        """Every replica has a token for each that it runs."""
        for actor in self._actors:
            if not actor.open:
                continue
            deltas = [Delta(handle, (7,), finish) for handle in actor.open]
            if finish is not None:
                actor.open.clear()
            message = actor.message(deltas=deltas)
            with self.timed():
                actor.stream.receive(message)
                await asyncio.sleep(0)
        with self.timed():
            await _turns()


async def _read(flight: Flight) -> None:
    with contextlib.suppress(RequestError):
        async with flight:
            await flight.placed()
            async for _ in flight:
                pass


async def _turns() -> None:
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def _tokenizer() -> Tokenizer:
    """A token for each byte."""
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[]))
    backend.decoder = tokenizers.decoders.ByteLevel()
    return Tokenizer(backend, bos_token=None, eos_token=None)
