"""How long the head of an HTTP request may be and take: its first line and its headers.

Owns these bounds, which neither uvicorn nor the parser that it uses has: both gather a head that
never ends for as long as it comes. It knows nothing of bodies (``deployments.asgi``).
"""

from __future__ import annotations

from asyncio import BaseTransport, TimerHandle

from httptools import HttpParserError
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

__all__ = ["HEAD_TIMEOUT_S", "MAX_HEADERS", "MAX_HEAD_BYTES", "BoundedHead"]

MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 128
HEAD_TIMEOUT_S = 30.0
"""From the connection or the head's first byte to its last; between requests, keep-alive rules."""

LINGER_S = 1.0
"""What still comes after a refusal is dropped; to hang up at once would lose the refusal too."""

_REFUSAL = b"HTTP/1.1 %b\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_TOO_LARGE = b"431 Request Header Fields Too Large"
_TOO_SLOW = b"408 Request Timeout"


class BoundedHead(HttpToolsProtocol):
    """uvicorn's protocol; refuses a head that is too long or takes too long, and hangs up.

    A head is counted twice over: as it comes, since one header alone may never end, and header by
    header, since what comes in one piece may hold a whole head and the begin of a body.
    """

    _in_head = False
    _size = 0
    """Of what the parser has read of the head."""
    _unread = 0
    """Of what came after the head's first piece, and has not brought its end."""
    _timer: TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)  # type: ignore[arg-type]  # the same, by another name
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        head = self.headers if self._in_head else None
        super().data_received(data)
        if head is not None and self._in_head and self.headers is head:
            self._unread += len(data)
            if self._unread > MAX_HEAD_BYTES:
                self._refuse(_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._size = self._unread = 0
        self._start_timer()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Unless the head has been refused already."""
        if not self._refused:
            super().send_400_response(msg)

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > MAX_HEAD_BYTES or len(self.headers) > MAX_HEADERS:
            self._refuse(_TOO_LARGE)
            raise HttpParserError("the head is too long")

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(HEAD_TIMEOUT_S, self._refuse, _TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self.transport.write(_REFUSAL % status)
        self._stop_timer()
        self._timer = self.loop.call_later(LINGER_S, self.transport.close)
