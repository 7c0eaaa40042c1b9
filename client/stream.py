"""A streamed answer, for threads.

Owns when its connection is opened, read and cut. What its bytes mean is ``client.events``'s.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

import httpx2

from chairlift.client.door import late, named_faults
from chairlift.client.errors import ClientError, Interrupted
from chairlift.client.events import Events
from chairlift.client.results import Delta, Usage

__all__ = ["Stream"]

Opened = tuple[httpx2.Response, float | None]
"""A response that has begun, and the seconds that are left to it."""


class Stream:
    """The deltas of one answer, as they come: ``with client.stream_chat(…) as deltas:``.

    The request is sent when the block is entered, or with the first delta. Leaving the block, and
    ``close`` from any thread, end it at the server at once. One thread at a time may iterate.
    """

    def __init__(self, send: Callable[[], Opened], request_id: str) -> None:
        self.request_id = request_id
        self._send = send
        self._events = Events(request_id)
        self._deltas: deque[Delta] = deque()
        self._response: httpx2.Response | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._timer: threading.Timer | None = None
        self._late = False
        self._ended = False
        self._reading = threading.Lock()

    @property
    def usage(self) -> Usage | None:
        """None before the end."""
        return self._events.usage

    @property
    def seeds(self) -> tuple[int, ...]:
        """One a prompt, as soon as the answer has begun."""
        return self._events.seeds

    def __enter__(self) -> Self:
        with self._reading:
            self._start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delta:
        """Raises ClientError."""
        with self._reading:
            try:
                self._start()
                while not self._deltas:
                    self._read()
                return self._deltas.popleft()
            except BaseException:
                self._end()
                raise

    def close(self) -> None:
        """End it; a thread that waits for a delta sees the end. Again: does nothing."""
        if not self._ended:
            self._ended = True
            self._cut()
        if self._reading.acquire(blocking=False):  # else whoever reads ends it
            try:
                self._end()
            finally:
                self._reading.release()

    def _start(self) -> None:
        if self._response is not None or self._ended:
            return
        response, left_s = self._send()
        self._response = response
        self._events = Events(self.request_id, response.headers.get("x-chairlift-seed", ""))
        self._pieces = response.iter_raw()
        if left_s is not None:
            self._timer = threading.Timer(left_s, self._expire)
            self._timer.daemon = True
            self._timer.start()

    def _read(self) -> None:
        """Wait for more deltas; raises StopIteration at the end, and ClientError."""
        events = self._events
        if events.fault is not None:
            raise events.fault
        if self._ended:
            raise StopIteration
        try:
            with named_faults(self.request_id, None):
                piece = next(self._pieces, None)
        except Interrupted:
            piece = None
            if not (self._late or self._ended):
                raise
        if piece is not None:
            self._deltas += events.feed(piece)
            return
        if self._late:
            raise late(self.request_id)
        if not self._ended:
            self._ended = True
            events.end()

    def _expire(self) -> None:
        self._late = True
        self._cut()

    def _cut(self) -> None:
        """Wake whoever waits for bytes; closing the socket would not."""
        if self._response is None or self._response.is_closed:
            return
        stream = self._response.extensions.get("network_stream")
        connection = stream and stream.get_extra_info("socket")
        if isinstance(connection, socket.socket):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _end(self) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._response is not None:
            with contextlib.suppress(ClientError), named_faults(self.request_id, None):
                self._response.close()
