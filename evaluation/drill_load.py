"""Load on a service for drills: who asks, how often, and for how much.

Owns the two kinds of pace over connections of one client. Times and lengths are drawn from seeds,
so the same load asks for the same at the same times, whatever else goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import repeat

import aiohttp

from chairlift.evaluation.arrivals import arrival_times, parse_arrivals
from chairlift.evaluation.completions import CompletionClient, Target, request_body
from chairlift.evaluation.drill_client import load_session
from chairlift.evaluation.lengths import parse_lengths
from chairlift.evaluation.load import Ask, Clock, Send, closed_loop, open_loop, started_clock
from chairlift.evaluation.openai_stream import first_model
from chairlift.evaluation.percentiles import percentiles
from chairlift.evaluation.records import RequestRecord

__all__ = ["Load", "LoadSource", "load_source", "p99", "p99_lag"]

MAX_IN_FLIGHT = 10_000


@dataclass(frozen=True, slots=True)
class Load:
    """What one client asks for.

    Attributes:
        prompt, output: distributions of tokens, see ``lengths``.
        seed: of times, lengths and prompts.
    """

    prompt: str
    output: str
    seed: int = 0


class LoadSource:
    """One client of a service.

    Attributes:
        in_flight: requests that are under way.
    """

    def __init__(
        self, session: aiohttp.ClientSession, target: Target, load: Load, timeout_s: float
    ) -> None:
        self.in_flight = 0
        self._session = session
        self._target = target
        self._load = load
        self._timeout_s = timeout_s

    async def open(
        self, *phases: tuple[float, float], patience_s: float | None = None
    ) -> list[RequestRecord]:
        """Poisson arrivals, one phase after the other; the records by intended time.

        Args:
            phases: arrivals a second, and for how many seconds.
            patience_s: how long after the last phase to wait for answers; None for all.
        """
        records: list[RequestRecord] = []
        clock, end = started_clock(), sum(duration for _, duration in phases)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if patience_s is None else end + patience_s):
                await open_loop(
                    self._asks(self._times(phases)),
                    self._send(clock),
                    records.append,
                    clock=clock,
                    max_in_flight=MAX_IN_FLIGHT,
                )
        return sorted(records, key=lambda record: record.intended)

    async def closed(self, concurrency: int, duration_s: float) -> list[RequestRecord]:
        """So many at a time for so long."""
        records: list[RequestRecord] = []
        clock = started_clock()
        await closed_loop(
            self._asks(repeat(0.0)),
            self._send(clock),
            records.append,
            clock=clock,
            concurrency=concurrency,
            until=duration_s,
        )
        return records

    def _times(self, phases: Iterable[tuple[float, float]]) -> Iterator[float]:
        rng, start = random.Random(f"times {self._load.seed}"), 0.0
        for rate, duration_s in phases:
            for at in arrival_times(parse_arrivals("poisson"), rate, rng):
                if at >= duration_s:
                    break
                yield start + at
            start += duration_s

    def _asks(self, times: Iterable[float]) -> Iterator[Ask]:
        load = self._load
        source, rng = parse_lengths(load.prompt, load.output), random.Random(load.seed)
        for at in times:
            lengths = source.draw(rng)
            body = request_body(self._target, lengths, rng)
            yield Ask(at, lengths.prompt, lengths.output, body)

    def _send(self, clock: Clock) -> Send:
        client = CompletionClient(
            self._session, self._target, clock=clock, timeout_s=self._timeout_s
        )

        async def send(ask: Ask, intended: float) -> RequestRecord:
            self.in_flight += 1
            try:
                return await client.send(ask, intended)
            finally:
                self.in_flight -= 1

        return send


@asynccontextmanager
async def load_source(
    url: str,
    load: Load,
    *,
    headers: Mapping[str, str] | None = None,
    traces: Iterable[aiohttp.TraceConfig] = (),
    timeout_s: float = 120.0,
) -> AsyncIterator[LoadSource]:
    """A client with connections of its own; ``headers`` go with each request."""
    async with load_session(headers, traces) as session:
        base = f"{url}/v1"
        target = Target(base=base, model=await first_model(session, base))
        yield LoadSource(session, target, load, timeout_s)


def p99(values: Iterable[float]) -> float | None:
    """None when there are no values."""
    found = percentiles(values)
    return None if found is None else found.p99


def p99_lag(records: Iterable[RequestRecord]) -> float | None:
    """How late the generator itself was, in seconds."""
    return p99(record.sent - record.intended for record in records if record.sent is not None)
