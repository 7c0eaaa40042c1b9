"""What both clients know of their server, and of the HTTP library.

Owns the connection's settings, the headers of all calls, and what the library's exceptions are to
the user. It sends nothing itself.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx2

from chairlift.client.calls import Call, server_address
from chairlift.client.errors import DeadlineExceeded, Interrupted, NotConnected
from chairlift.client.retries import Attempts, RetryBudget, RetryPolicy

__all__ = ["Door", "late", "named_faults", "transport_options"]

CONNECT_S = 10.0
IDLE_S = 30.0
"""A connection that nobody uses is kept for this; the server keeps it for longer."""

KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
        if hasattr(socket, name)
    ),
)
"""A call without a timeout may be silent for long, but not once its server's machine has gone."""


class Door:
    """One server, and how it is asked.

    Attributes:
        url: without a path.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None,
        timeout_s: float | None,
        retries: RetryPolicy,
        now: float,
    ) -> None:
        """Raises ValueError for an address, a key or a timeout that is none."""
        self.url = server_address(url)
        if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
            raise ValueError("api_key: a key has printable ASCII characters only")
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s: must be above 0, not {timeout_s}")
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "chairlift-client"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._timeout_s = timeout_s
        self._retries = retries
        self._budget = RetryBudget(retries, now)

    def attempts(self, call: Call, now: float) -> Attempts:
        """A call begins."""
        timeout_s = self._timeout_s if call.timeout_s is None else call.timeout_s
        return Attempts(self._retries, self._budget, timeout_s, now)

    def request(self, call: Call, left_s: float | None) -> dict[str, Any]:
        """The arguments with which either of the library's clients makes the request."""
        connect_s = CONNECT_S if left_s is None else min(CONNECT_S, left_s)
        return {
            "method": call.method,
            "url": self.url + call.path,
            "headers": self._headers | call.headers(left_s),
            "content": call.body,
            "timeout": httpx2.Timeout(left_s, connect=connect_s),
        }


def transport_options(url: str, tls: ssl.SSLContext | None) -> Mapping[str, Any]:
    """The arguments of either of the library's transports."""
    # Reading the machine's certificates takes longer than a short answer; no redirect is followed.
    verify = (tls or True) if url.startswith("https:") else False
    limits = httpx2.Limits(
        max_connections=None, max_keepalive_connections=64, keepalive_expiry=IDLE_S
    )
    return {
        "verify": verify,
        "limits": limits,
        "socket_options": KEEP_ALIVE,
        "trust_env": False,
    }


@contextmanager
def named_faults(request_id: str, left_s: float | None) -> Iterator[None]:
    """The library's exceptions as ours.

    Raises:
        NotConnected, DeadlineExceeded, Interrupted
    """
    try:
        yield
    except httpx2.ConnectTimeout as error:
        if left_s is not None and left_s <= CONNECT_S:
            raise late(request_id) from error
        raise NotConnected("the server does not answer", request_id=request_id) from error
    except httpx2.ConnectError as error:
        raise NotConnected(f"no connection: {error}", request_id=request_id) from error
    except httpx2.TimeoutException as error:
        raise late(request_id) from error
    except (httpx2.TransportError, httpx2.StreamError) as error:
        detail = str(error) or type(error).__name__
        raise Interrupted(f"the connection broke: {detail}", request_id=request_id) from error


def late(request_id: str) -> DeadlineExceeded:
    """The end of a call whose time is up here."""
    return DeadlineExceeded("the call took longer than its timeout_s", request_id=request_id)
