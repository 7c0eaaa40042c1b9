"""How one call goes over a connection, for threads, and is tried again.

Owns the connections. When a call is tried again is ``client.retries``'s.
"""

from __future__ import annotations

import random
import ssl
import time
from contextlib import closing
from time import monotonic

import httpx2

from chairlift.client.calls import Call
from chairlift.client.door import Door, late, named_faults, transport_options
from chairlift.client.errors import ClientError, error_response
from chairlift.client.retries import Attempts
from chairlift.client.stream import Opened

__all__ = ["Sender"]


class Sender:
    """The connections to one server."""

    def __init__(self, door: Door, tls: ssl.SSLContext | None) -> None:
        self._door = door
        transport = httpx2.HTTPTransport(**transport_options(door.url, tls))
        self._http = httpx2.Client(transport=transport, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def fetch(self, call: Call) -> bytes:
        """The body of the call's result."""
        response, left_s = self.open(call)
        deadline = None if left_s is None else monotonic() + left_s
        with closing(response), named_faults(call.request_id, left_s):
            pieces = []
            for piece in response.iter_raw():
                if deadline is not None and monotonic() > deadline:
                    raise late(call.request_id)
                pieces.append(piece)
            return b"".join(pieces)

    def open(self, call: Call) -> Opened:
        """Send it, again where that is right, until a result begins."""
        attempts = self._door.attempts(call, monotonic())
        while True:
            try:
                return self._attempt(call, attempts)
            except ClientError as error:
                pause_s = attempts.pause_s(error, monotonic(), random.uniform)
                if pause_s is None:
                    raise
            time.sleep(pause_s)

    def _attempt(self, call: Call, attempts: Attempts) -> Opened:
        left_s = attempts.left_s(monotonic())
        request = self._http.build_request(**self._door.request(call, left_s))
        with named_faults(call.request_id, left_s):
            response = self._http.send(request, stream=True)
            if response.status_code in call.answers:
                return response, attempts.left_s(monotonic())
            with closing(response):
                body = response.read()
        raise error_response(response.status_code, response.headers, body, call.request_id)
