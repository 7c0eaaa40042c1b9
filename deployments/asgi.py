"""One HTTP exchange over ASGI.

Owns what every endpoint needs of HTTP: the request's id, a body read within bounds, the response,
and noticing that the client has left. It knows nothing of the API.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import parse_qs

from chairlift.cluster.errors import (
    BodyTimeout,
    PayloadTooLarge,
    RequestError,
    Unauthorized,
    UnsupportedMediaType,
)
from chairlift.deployments.openai_response import error_body
from chairlift.deployments.request_terms import read_request_id
from chairlift.deployments.sse import error_event

__all__ = [
    "Application",
    "ClientGone",
    "Exchange",
    "Receive",
    "Scope",
    "Send",
    "lifespan",
    "refuse_websocket",
]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = Iterable[tuple[bytes, bytes]]

_STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class ClientGone(Exception):
    """The client has left, so nobody waits for the rest. No error of anybody's."""


class Exchange:
    """A request and its response.

    Attributes:
        path: without the prefix under which the application is mounted.
        client: the address that the connection comes from; None where nobody can tell.
        request_id: the client's ``X-Request-Id``, or one that was drawn; the response carries it.
        started: whether the status has been sent, so that an error can no longer change it.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        self.client: str | None = (scope.get("client") or (None,))[0]
        self._query: bytes = scope.get("query_string", b"")
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        self._receive = receive
        self._send = send
        self.request_id = read_request_id(self._headers.get(b"x-request-id", b"").decode("latin-1"))
        self.started = False

    def header(self, name: str) -> str | None:
        """The last header of that name; None without one."""
        value = self._headers.get(name.lower().encode())
        return None if value is None else value.decode(errors="replace").strip()

    def query(self, name: str) -> str | None:
        """The last value of that name after the path's question mark; None without one."""
        values = parse_qs(self._query.decode(errors="replace")).get(name)
        return None if values is None else values[-1]

    async def read_json(self, max_bytes: int, timeout_s: float) -> bytes:
        """The whole body.

        Raises:
            UnsupportedMediaType: the headers call it something else than JSON.
            PayloadTooLarge: it is longer than ``max_bytes``, or claims to be.
            BodyTimeout: it did not arrive within ``timeout_s`` seconds.
            ClientGone: the client left before the end.
        """
        _check_media_type(self._headers)
        length = self._headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > max_bytes:
            raise _too_large(max_bytes)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._read(max_bytes)
        except TimeoutError:
            raise BodyTimeout(f"The body did not arrive within {timeout_s:g} seconds") from None

    async def _read(self, max_bytes: int) -> bytes:
        pieces = []
        size = 0
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            piece = message.get("body", b"")
            size += len(piece)
            if size > max_bytes:
                raise _too_large(max_bytes)
            pieces.append(piece)
            more = message.get("more_body", False)
        return b"".join(pieces)

    @contextlib.asynccontextmanager
    async def while_client_stays(self) -> AsyncIterator[None]:
        """Cancels what runs inside when the client leaves, and then raises ClientGone.

        For after the body was read. Servers differ: uvicorn only tells through ``receive``, Ray
        Serve also cancels the task, which passes through here as any cancellation does.
        """
        try:
            # A timeout without a time is the standard library's scope for cancelling: it tells
            # its own cancellation from others'.
            async with asyncio.timeout(None) as scope:
                watcher = asyncio.create_task(self._watch(scope))
                try:
                    yield
                finally:
                    watcher.cancel()
        except TimeoutError:
            if scope.expired():
                raise ClientGone from None
            raise

    async def _watch(self, scope: asyncio.Timeout) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        scope.reschedule(asyncio.get_running_loop().time())

    async def respond(
        self,
        status: int,
        body: bytes,
        *,
        content_type: str = "application/json",
        headers: Headers = (),
    ) -> None:
        """Send a whole response."""
        await self._start(
            status,
            (
                (b"content-type", content_type.encode()),
                (b"content-length", b"%d" % len(body)),
                *headers,
            ),
        )
        await self._write(b"" if self.method == "HEAD" else body, more=False)

    async def start_stream(self, headers: Headers = ()) -> None:
        """Begin a response of server-sent events."""
        await self._start(200, (*_STREAM_HEADERS, *headers))

    def write(self, events: bytes) -> Awaitable[None]:
        """Send events; waits while the client reads more slowly than they come."""
        return self._write(events, more=True)

    async def end_stream(self, events: bytes) -> None:
        """Send the last events and end the response."""
        await self._write(events, more=False)

    async def fail(self, error: RequestError, headers: Headers = ()) -> None:
        """End with an error: as a response of its own, or as the last event of a stream."""
        if self.started:
            await self.end_stream(error_event(error))
            return
        extra = list(headers)
        if error.retry_after_s is not None:
            extra.append((b"retry-after", b"%d" % math.ceil(error.retry_after_s)))
        if isinstance(error, BodyTimeout):
            # The rest of the body is still to come, however slowly; do not wait for it.
            extra.append((b"connection", b"close"))
        if isinstance(error, Unauthorized):
            extra.append((b"www-authenticate", b"Bearer"))
        await self.respond(error.http_status, error_body(error), headers=extra)

    async def _start(self, status: int, headers: Headers) -> None:
        self.started = True
        request_id = (b"x-request-id", self.request_id.encode())
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, request_id]}
        )

    def _write(self, body: bytes, *, more: bool) -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": body, "more_body": more})


def _check_media_type(headers: dict[bytes, bytes]) -> None:
    kind = headers.get(b"content-type", b"").split(b";")[0].strip().lower()
    if kind and kind != b"application/json" and not kind.endswith(b"+json"):
        raise UnsupportedMediaType("Send the body as JSON, with Content-Type: application/json")
    if headers.get(b"content-encoding", b"identity").strip().lower() not in (b"", b"identity"):
        raise UnsupportedMediaType("Send the body as it is: Content-Encoding is not offered")


def _too_large(max_bytes: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body is longer than {max_bytes} bytes")


async def lifespan(receive: Receive, send: Send) -> None:
    """Answer the server's start and stop; what the application uses is owned by its maker."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def refuse_websocket(receive: Receive, send: Send) -> None:
    """Close before the handshake; the server answers 403."""
    await receive()
    await send({"type": "websocket.close", "code": 1000})
