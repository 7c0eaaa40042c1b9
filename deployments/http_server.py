"""The HTTP listener of one router replica.

Owns uvicorn, and how a server leaves without a client noticing; it knows nothing of the API behind
it. The port is shared (``deployments.listener``), so several router replicas of one node, or an
old and a new one during an update, listen on the same port, and the kernel spreads connections
over them (see ``docs/adr/0006-router-owned-http-port.md``).

    serving ──leave──► no new connections; those open are served, and told to close ──stop──► gone
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from functools import partial
from typing import Any, NoReturn

import uvicorn

from chairlift.deployments.asgi import Application, Receive, Scope, Send
from chairlift.deployments.listener import listen, settle
from chairlift.deployments.request_head import BoundedHead
from chairlift.deployments.tls import Tls
from chairlift.deployments.tls_front import TlsFront

__all__ = ["LINGER_S", "HttpServer"]

KEEP_ALIVE_S = 75
LINGER_S = 2.0
"""How long idle connections may still send a request, whose answer then tells them to close."""
TICK_S = 0.01
DATE_S = 1.0
"""The resolution of the Date header."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to the process that hosts us.

    And with one look a second instead of ten at what it looks after, which is the Date header.
    """

    def __init__(self, config: uvicorn.Config, tls: Tls | None) -> None:
        super().__init__(config)
        self._tls = tls
        self._exit = asyncio.Event()

    def exit(self) -> None:
        """End when all responses have."""
        self.should_exit = True
        self._exit.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None or sockets is None:
            await super().startup(sockets)
            return
        make = partial(BoundedHead, self.config, self.server_state, self.lifespan.state)
        fronts: list[Any] = [TlsFront(each, self._tls.context, make) for each in sockets]
        self.servers = fronts
        self.started = True

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exit.wait(), DATE_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @property
    def has_idle(self) -> bool:
        """Whether a connection is open that nothing is computed for."""
        return len(self.server_state.connections) > len(self.server_state.tasks)


class HttpServer:
    """Serves one ASGI application until ``stop``."""

    def __init__(self, app: Application, host: str, port: int, tls: Tls | None = None) -> None:
        """``tls``: what to shake hands with; None for plain HTTP."""
        self._app = app
        self._tls = tls
        self._server = _Server(
            uvicorn.Config(
                self._serve,
                log_config=None,
                access_log=False,
                lifespan="off",
                interface="asgi3",
                ws="none",
                http=BoundedHead,
                timeout_keep_alive=KEEP_ALIVE_S,
                server_header=False,
                proxy_headers=False,
            ),
            tls,
        )
        self._socket = listen(host, port)
        self._task: asyncio.Task[None] | None = None
        self._fresh: asyncio.Task[NoReturn] | None = None
        self._leaving = False

    async def start(self) -> int:
        """Begin to accept; returns the port. Raises OSError when the port is taken."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the HTTP server ended while it started")
            await asyncio.sleep(0.005)
        if self._tls is not None:
            self._fresh = asyncio.create_task(self._tls.keep_fresh(), name="certificate")
        return int(self._socket.getsockname()[1])

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def leave(self, linger_s: float = LINGER_S) -> None:
        """Take no new connections, and let go of those that idle.

        Loses nothing while others listen on the same port: new connections go to them, none that
        the kernel has given to this socket is reset, and a client that keeps its connection is
        told to close it with its next response.
        """
        if not self.alive or self._leaving:
            return
        self._leaving = True
        await settle([self._socket])
        for server in self._server.servers:
            server.close()
        await _wait_while(lambda: self._server.has_idle, linger_s)

    async def quiet(self, timeout_s: float) -> None:
        """Wait until no response is under way; connections that are left open are served."""
        await _wait_while(lambda: bool(self._server.server_state.tasks), timeout_s)

    async def stop(self, grace_s: float) -> None:
        """Leave and end; responses under way get ``grace_s`` seconds, then are cut."""
        if self._task is None:
            return
        await self.leave()
        if self._fresh is not None:
            self._fresh.cancel()
        self._server.exit()
        done, _ = await asyncio.wait([self._task], timeout=grace_s)
        if not done:
            self._server.force_exit = True
            await asyncio.wait([self._task], timeout=grace_s)

    def _serve(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """The application, whose responses end their connections once we leave."""

        def send_on(message: MutableMapping[str, Any]) -> Awaitable[None]:
            if self._leaving and message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            return send(message)

        return self._app(scope, receive, send_on)


async def _wait_while(condition: Callable[[], bool], timeout_s: float) -> None:
    """While it holds, but not for ever."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            while condition():  # noqa: ASYNC110  # neither kernel nor uvicorn would tell us
                await asyncio.sleep(TICK_S)
