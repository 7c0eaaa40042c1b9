"""A router without replicas, whose flights tell what a test scripts."""

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace

from chairlift.cluster.errors import RequestError
from chairlift.cluster.protocol import LoadReport, ReplicaInfo, Request
from chairlift.router.ask import Ask
from chairlift.router.flight import Update
from chairlift.router.placement import ReplicaView
from support.engines import replica_info
from support.scored import prompt_logprobs

Scripted = list[Update] | RequestError | asyncio.Event
"""A turn, the failure of the request, or something to wait for."""


def hello(request: Request) -> list[Scripted]:
    """Each choice says "Hello world" in two turns and five tokens."""
    return [
        [
            Update(choice, "Hello", 2, None, prompt_logprobs=prompt_logprobs(request))
            for choice in range(request.n)
        ],
        [Update(choice, " world", 3, "stop") for choice in range(request.n)],
    ]


class FakeFlight:
    """Implements ``Flight``.

    ``closed`` tells that its user has left it, ``unfinished`` that this cut it short.
    """

    def __init__(self, ask: Ask, script: Iterable[Scripted], placing: object) -> None:
        """``placing``: what has to be awaited before a replica takes it, if it is a coroutine."""
        self.ask = ask
        self.request = ask.request
        self.queued = False
        self.output_tokens = 0
        self.cached_tokens = 0
        self.waiting = False
        self.choices = [SimpleNamespace(output=range(100, 200)) for _ in range(ask.request.n)]
        self.closed = False
        self.unfinished = True
        self._script = iter(script)
        self._placing = placing

    async def placed(self) -> None:
        self.queued = True
        try:
            await asyncio.sleep(0)
            if asyncio.iscoroutine(self._placing):
                await self._placing
        finally:
            self.queued = False

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt)

    async def __aenter__(self) -> "FakeFlight":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True
        if asyncio.iscoroutine(self._placing):
            self._placing.close()

    def __aiter__(self) -> "FakeFlight":
        return self

    async def __anext__(self) -> list[Update]:
        await asyncio.sleep(0)
        turn = next(self._script, None)
        while isinstance(turn, asyncio.Event):
            self.waiting = True
            await turn.wait()
            self.waiting = False
            turn = next(self._script, None)
        if isinstance(turn, RequestError):
            self.unfinished = False
            raise turn
        if turn is None:
            self.unfinished = False
            raise StopAsyncIteration
        self.output_tokens += sum(update.num_tokens for update in turn)
        return turn


class FakeMetrics:
    def render(self) -> tuple[bytes, str]:
        return b"chairlift_requests_open 0.0\n", "text/plain; version=0.0.4"


class FakeRouter:
    """Implements ``Router``.

    Attributes:
        script: what each flight tells.
        admission: called when a request is submitted; may refuse it by raising, or return a
            coroutine, to be awaited before it is placed.
        flights: all that were not refused at once.
    """

    def __init__(self, script: Callable[[Request], Iterable[Scripted]] = hello) -> None:
        self.script = script
        self.admission: Callable[[Request], object] = lambda request: None
        self.flights: list[FakeFlight] = []
        self.max_sequence_tokens: int | None = None
        self.may_sleep = False
        self.metrics = FakeMetrics()
        self.views = [live_view(replica_info())]

    @property
    def requests(self) -> list[Request]:
        return [flight.request for flight in self.flights]

    def replicas(self) -> list[ReplicaView]:
        return self.views

    def submit(self, ask: Ask) -> FakeFlight:
        placing = self.admission(ask.request)
        flight = FakeFlight(ask, self.script(ask.request), placing)
        self.flights.append(flight)
        return flight

    def check_idle(self) -> None:
        """AssertionError while something is left open."""
        assert all(flight.closed and not flight.queued for flight in self.flights)


def live_view(info: ReplicaInfo, *, ready: bool = True) -> ReplicaView:
    load = LoadReport(running=1, blocks_total=info.blocks_total)
    return ReplicaView(info.replica_id, ready, info, load, load_age_s=0.25)
