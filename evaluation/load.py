"""Sends requests at their times, or so many at a time.

Owns the pacing; knows neither how a request is sent nor what its body says. ``open_loop`` sends
each request when it is due, however many are still under way, as independent users do.
``closed_loop`` keeps a fixed number under way and so slows down with the server: its figures are
no answer to what a given rate of arrivals would see.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from chairlift.evaluation.records import RequestRecord

__all__ = ["Ask", "Clock", "Send", "Sink", "closed_loop", "open_loop", "started_clock"]

Clock: TypeAlias = Callable[[], float]
"""Seconds since the start of the run, monotonic."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request to be sent ``at`` seconds after the start; closed loops ignore the time.

    Attributes:
        number: by which whoever made it tells it from others.
        patience_s: its client goes away that has no first token by then; None for never.
    """

    at: float
    prompt_tokens: int
    output_tokens: int
    body: bytes
    number: int = 0
    patience_s: float | None = None

    def wait_s(self, late_s: float, timeout_s: float) -> float:
        """Until its client goes away, when it is sent ``late_s`` after it was meant to be."""
        if self.patience_s is None:
            return timeout_s
        return min(max(self.patience_s - late_s, 0.0), timeout_s)


Send: TypeAlias = Callable[[Ask, float], Awaitable[RequestRecord]]
"""Sends one request, which was meant to be sent at the given time, and follows it to its end."""

Sink: TypeAlias = Callable[[RequestRecord], None]
"""Takes in each record when its request has ended."""


def started_clock() -> Clock:
    """Seconds from now."""
    start = time.monotonic()
    return lambda: time.monotonic() - start


async def open_loop(
    asks: Iterable[Ask], send: Send, sink: Sink, *, clock: Clock, max_in_flight: int
) -> None:
    """Send each request at its time; returns when all have ended.

    A request that is due while ``max_in_flight`` are under way is not sent: it fails as
    ``in_flight_limit``. Asks are taken one ahead, so making their bodies causes no lag.
    """
    under_way: set[asyncio.Task[None]] = set()
    async with asyncio.TaskGroup() as tasks:
        for ask in asks:
            # Sleeping for 0 s still lets started requests go out when the loop is behind.
            await asyncio.sleep(max(ask.at - clock(), 0.0))
            if len(under_way) >= max_in_flight:
                detail = f"{max_in_flight} requests were under way"
                sink(_unfinished(ask, ask.at, clock(), ("in_flight_limit", detail)))
                continue
            task = tasks.create_task(_follow(ask, ask.at, send, sink, clock))
            under_way.add(task)
            task.add_done_callback(under_way.discard)


async def closed_loop(
    asks: Iterator[Ask], send: Send, sink: Sink, *, clock: Clock, concurrency: int, until: float
) -> None:
    """Keep ``concurrency`` requests under way until the asks or the seconds ``until`` run out."""

    async def one_after_the_other() -> None:
        for ask in asks:
            if clock() >= until:
                return
            await _follow(ask, clock(), send, sink, clock)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(concurrency):
            tasks.create_task(one_after_the_other())


async def _follow(ask: Ask, intended: float, send: Send, sink: Sink, clock: Clock) -> None:
    try:
        record = await send(ask, intended)
    except asyncio.CancelledError:
        sink(_unfinished(ask, intended, clock(), ("interrupted", "the run was stopped")))
        raise
    sink(record)


def _unfinished(ask: Ask, intended: float, now: float, failure: tuple[str, str]) -> RequestRecord:
    return RequestRecord(
        intended=intended,
        sent=None,
        ended=now,
        asked_prompt=ask.prompt_tokens,
        asked_output=ask.output_tokens,
        failure=failure[0],
        detail=failure[1],
    )
