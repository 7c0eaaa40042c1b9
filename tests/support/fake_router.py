"""A router without replicas, whose flights tell what a test scripts."""

import asyncio
from collections.abc import Callable, Iterable

from chairlift.cluster.errors import RequestError
from chairlift.cluster.protocol import LoadReport, ReplicaInfo, Request
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

    def __init__(self, request: Request, stop: tuple[str, ...], script: Iterable[Scripted]) -> None:
        self.request = request
        self.stop = stop
        self.output_tokens = 0
        self.cached_tokens = 0
        self.waiting = False
        self.closed = False
        self.unfinished = True
        self._script = iter(script)

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt)

    async def __aenter__(self) -> "FakeFlight":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed = True

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
        admission: called before a request is accepted; may wait, or raise.
        flights: all that were accepted.
    """

    def __init__(self, script: Callable[[Request], Iterable[Scripted]] = hello) -> None:
        self.script = script
        self.admission: Callable[[Request], object] = lambda request: None
        self.flights: list[FakeFlight] = []
        self.submitting = 0
        self.max_sequence_tokens: int | None = None
        self.metrics = FakeMetrics()
        self.views = [live_view(replica_info())]

    @property
    def requests(self) -> list[Request]:
        return [flight.request for flight in self.flights]

    def replicas(self) -> list[ReplicaView]:
        return self.views

    async def submit(
        self, request: Request, stop: tuple[str, ...] = (), *, continues: bool = False
    ) -> FakeFlight:
        self.submitting += 1
        try:
            await asyncio.sleep(0)
            if asyncio.iscoroutine(waiting := self.admission(request)):
                await waiting
        finally:
            self.submitting -= 1
        flight = FakeFlight(request, stop, self.script(request))
        self.flights.append(flight)
        return flight

    def check_idle(self) -> None:
        """AssertionError while something is left open."""
        assert not self.submitting
        assert all(flight.closed for flight in self.flights)


def live_view(info: ReplicaInfo, *, ready: bool = True) -> ReplicaView:
    load = LoadReport(running=1, blocks_total=info.blocks_total)
    return ReplicaView(info.replica_id, ready, info, load, load_age_s=0.25)
