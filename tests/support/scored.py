"""Made-up log probabilities, and flights that are fed from a script instead of by a replica."""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from chairlift.cluster.config_sections import TelemetryConfig
from chairlift.cluster.protocol import Delta, FinishReason, Request, SamplingParams, TokenLogprobs
from chairlift.router.ask import Ask
from chairlift.router.flight import Flight, FlightSupport
from chairlift.router.metrics import RouterMetrics
from chairlift.router.placement import ReplicaView
from chairlift.router.recorder import Recorder
from support.fake_tokenizer import FakeTokenizer

Script = Callable[[Request], Iterable[Sequence[Delta]]]
"""What a replica says to a request under the handles 0 … n - 1, turn by turn."""


def logprobs_of(token: int, k: int) -> TokenLogprobs:
    """A function of the token alone, in steps that float32 holds."""
    top = tuple(((token + rank) % 256, -0.125 * rank) for rank in range(k))
    return TokenLogprobs(top[0][1] if top else -0.5 - token / 8, top)


def scored_delta(
    request: Request, choice: int, tokens: Sequence[int], finish: FinishReason | None = None, **more
) -> Delta:
    """A delta as a replica would make it for this request."""
    k = request.sampling.logprobs
    logprobs = () if k is None else tuple(logprobs_of(token, k) for token in tokens)
    return Delta(choice, tuple(tokens), finish, logprobs=logprobs, **more)


def prompt_logprobs(request: Request) -> tuple[TokenLogprobs, ...]:
    k = request.sampling.prompt_logprobs
    return () if k is None else tuple(logprobs_of(token, k) for token in request.prompt[1:])


def says(
    *chunks: Sequence[int], finish: FinishReason = FinishReason.LENGTH, cached_tokens: int = 0
) -> Script:
    """Each choice says these tokens, a chunk a turn; the prompt's values come with the first."""

    def script(request: Request) -> Iterable[Sequence[Delta]]:
        for number, chunk in enumerate(chunks):
            first = number == 0
            yield [
                scored_delta(
                    request,
                    choice,
                    chunk,
                    finish if number == len(chunks) - 1 else None,
                    cached_tokens=cached_tokens if first else 0,
                    prompt_logprobs=prompt_logprobs(request) if first else (),
                )
                for choice in range(request.n)
            ]

    return script


def scored_request(prompt: Sequence[int] = (65, 66), *, n: int = 1, **sampling: Any) -> Request:
    return Request("id", tuple(prompt), SamplingParams(**({"max_tokens": 99} | sampling)), n=n)


class Carrier:
    """Takes note of which choices nobody wants any more."""

    def __init__(self) -> None:
        self.cancelled: set[int] = set()

    def cancel(self, choice: int) -> None:
        self.cancelled.add(choice)


def scripted_flight(
    request: Request, stop: tuple[str, ...] = (), *, tokenizer: Any = None, continues: bool = False
) -> tuple[Flight, Carrier]:
    """A flight that a replica has accepted, and that waits for ``tell``."""
    support = FlightSupport(
        tokenizer or FakeTokenizer(),
        Recorder(RouterMetrics("", lambda: []), TelemetryConfig()),
        time.monotonic,
        lambda flight: None,
    )
    ask = Ask(request, stop=stop, continues=continues)
    flight, carrier = Flight(ask, math.inf, support), Carrier()
    for choice in flight.choices:
        choice.place = carrier
    flight.accept()
    return flight, carrier


def tell(flight: Flight, delta: Delta, at: float = 0.0) -> None:
    """News of the choice whose index is the delta's handle."""
    flight.receive(delta.handle, delta, at)


class ScriptedRouter:
    """Implements ``Router``: its flights are real, and are told what ``script`` says.

    A reader that keeps up gets one update of each turn.
    """

    max_sequence_tokens = None
    may_sleep = False

    def __init__(self, script: Script, tokenizer: Any = None) -> None:
        self.script = script
        self.requests: list[Request] = []
        self._tokenizer = tokenizer or FakeTokenizer()
        self._feeding: set[asyncio.Task[None]] = set()

    def replicas(self) -> list[ReplicaView]:
        return []

    def submit(self, ask: Ask) -> Flight:
        flight, carrier = scripted_flight(
            ask.request, ask.stop, tokenizer=self._tokenizer, continues=ask.continues
        )
        self.requests.append(ask.request)
        task = asyncio.create_task(self._feed(flight, carrier))
        self._feeding.add(task)
        task.add_done_callback(self._feeding.discard)
        return flight

    async def _feed(self, flight: Flight, carrier: Carrier) -> None:
        for turn in self.script(flight.request):
            for _ in range(6):  # until the reader has had its turn
                await asyncio.sleep(0)
            for delta in turn:
                if delta.handle not in carrier.cancelled:
                    tell(flight, delta, time.monotonic())
