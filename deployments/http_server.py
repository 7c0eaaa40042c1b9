"""The HTTP listener of one router replica.

Owns the socket and uvicorn; it knows nothing of the API behind it. The port is shared by
SO_REUSEPORT, so several router replicas of one node, or an old and a new one during an update,
listen on the same port, and the kernel spreads connections over them (see
``docs/adr/0006-router-owned-http-port.md``).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

__all__ = ["HttpServer"]

BACKLOG = 2048
KEEP_ALIVE_S = 75


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals belong to the process that hosts us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves one ASGI application until ``stop``."""

    def __init__(self, app: Any, host: str, port: int) -> None:
        self._server = _Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                timeout_keep_alive=KEEP_ALIVE_S,
                server_header=False,
            )
        )
        self._socket = _listen(host, port)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Begin to accept; returns the port. Raises OSError when the port is taken."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the HTTP server ended while it started")
            await asyncio.sleep(0.005)
        return int(self._socket.getsockname()[1])

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self, grace_s: float) -> None:
        """Stop accepting; responses under way get ``grace_s`` seconds, then are cut."""
        if self._task is None:
            return
        self._server.should_exit = True
        done, _ = await asyncio.wait([self._task], timeout=grace_s)
        if not done:
            self._server.force_exit = True
            await asyncio.wait([self._task], timeout=grace_s)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
