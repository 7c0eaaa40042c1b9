"""A streamed answer, for asyncio.

Owns when its connection is opened, read and closed. What its bytes mean is ``client.events``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from types import TracebackType
from typing import Self

import httpx2

from chairlift.client.door import late, named_faults
from chairlift.client.errors import ClientError, Interrupted
from chairlift.client.events import Events
from chairlift.client.results import Delta, Usage

__all__ = ["AsyncStream"]

Opened = tuple[httpx2.Response, float | None]
"""A response that has begun, and the seconds that are left to it."""


class AsyncStream:
    """The deltas of one answer, as they come: ``async with client.stream_chat(…) as deltas:``.

    The request is sent when the block is entered, or with the first delta. Leaving the block,
    ``close`` from any task, and cancelling the task that waits for a delta, end it at the server
    at once. One task at a time may iterate.
    """

    def __init__(self, send: Callable[[], Awaitable[Opened]], request_id: str) -> None:
        self.request_id = request_id
        self._send = send
        self._events = Events(request_id)
        self._deltas: deque[Delta] = deque()
        self._response: httpx2.Response | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        self._deadline: float | None = None
        self._ended = False

    @property
    def usage(self) -> Usage | None:
        """None before the end."""
        return self._events.usage

    @property
    def seeds(self) -> tuple[int, ...]:
        """One a prompt, as soon as the answer has begun."""
        return self._events.seeds

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delta:
        """Raises ClientError."""
        try:
            pieces = await self._start()
            while not self._deltas:
                await self._read(pieces)
            return self._deltas.popleft()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End it; a task that waits for a delta sees the end. Again: does nothing."""
        self._ended = True
        if self._response is not None:
            with contextlib.suppress(ClientError), named_faults(self.request_id, None):
                await self._response.aclose()

    async def _start(self) -> AsyncIterator[bytes]:
        if self._pieces is None:
            if self._ended:
                raise StopAsyncIteration
            self._response, left_s = await self._send()
            self._deadline = None if left_s is None else monotonic() + left_s
            seeds = self._response.headers.get("x-chairlift-seed", "")
            self._events = Events(self.request_id, seeds)
            self._pieces = self._response.aiter_raw()
        return self._pieces

    async def _read(self, pieces: AsyncIterator[bytes]) -> None:
        """Wait for more deltas; raises StopAsyncIteration at the end, and ClientError."""
        events = self._events
        if events.fault is not None:
            raise events.fault
        if self._ended:
            raise StopAsyncIteration
        left_s = None if self._deadline is None else max(self._deadline - monotonic(), 0.0)
        try:
            async with asyncio.timeout(left_s):
                with named_faults(self.request_id, None):
                    piece = await anext(pieces, None)
        except TimeoutError:
            raise late(self.request_id) from None
        except Interrupted:
            piece = None
            if not self._ended:
                raise
        if piece is not None:
            self._deltas += events.feed(piece)
        elif not self._ended:
            self._ended = True
            events.end()
