"""How one call goes over a connection, for asyncio, and is tried again.

Owns the connections. When a call is tried again is ``client.retries``'s.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from time import monotonic

import httpx2

from chairlift.client.async_stream import Opened
from chairlift.client.calls import Call
from chairlift.client.door import Door, late, named_faults, transport_options
from chairlift.client.errors import ClientError, error_response
from chairlift.client.retries import Attempts

__all__ = ["AsyncSender"]


class AsyncSender:
    """The connections to one server."""

    def __init__(self, door: Door, tls: ssl.SSLContext | None) -> None:
        self._door = door
        transport = httpx2.AsyncHTTPTransport(**transport_options(door.url, tls))
        self._http = httpx2.AsyncClient(transport=transport, trust_env=False)

    async def close(self) -> None:
        await self._http.aclose()

    async def fetch(self, call: Call) -> bytes:
        """The body of the call's result."""
        response, left_s = await self.open(call)
        async with aclosing(response), _within(left_s, call):
            with named_faults(call.request_id, left_s):
                return await response.aread()

    async def open(self, call: Call) -> Opened:
        """Send it, again where that is right, until a result begins."""
        attempts = self._door.attempts(call, monotonic())
        while True:
            try:
                return await self._attempt(call, attempts)
            except ClientError as error:
                pause_s = attempts.pause_s(error, monotonic(), random.uniform)
                if pause_s is None:
                    raise
            await asyncio.sleep(pause_s)

    async def _attempt(self, call: Call, attempts: Attempts) -> Opened:
        left_s = attempts.left_s(monotonic())
        request = self._http.build_request(**self._door.request(call, left_s))
        async with _within(left_s, call):
            with named_faults(call.request_id, left_s):
                response = await self._http.send(request, stream=True)
                if response.status_code in call.answers:
                    return response, attempts.left_s(monotonic())
                async with aclosing(response):
                    body = await response.aread()
        raise error_response(response.status_code, response.headers, body, call.request_id)


@asynccontextmanager
async def _within(left_s: float | None, call: Call) -> AsyncIterator[None]:
    """Raises DeadlineExceeded when the time is up."""
    try:
        async with asyncio.timeout(left_s):
            yield
    except TimeoutError:
        raise late(call.request_id) from None
