"""All listeners of one router as one: HTTP, and gRPC unless it is switched off.

Owns that they start, leave and end together.
"""

from __future__ import annotations

import asyncio

from chairlift.cluster.config import GrpcConfig, HttpConfig
from chairlift.deployments.generations import Elsewhere, nowhere_else
from chairlift.deployments.grpc_server import GrpcServer
from chairlift.deployments.http import HttpApp
from chairlift.deployments.http_server import LINGER_S, HttpServer
from chairlift.deployments.tls import Tls

__all__ = ["Doors"]


class Doors:
    """Serves one router until ``stop``; see ``HttpServer`` and ``GrpcServer``."""

    def __init__(
        self,
        app: HttpApp,
        http: HttpConfig,
        grpc: GrpcConfig,
        tls: Tls | None = None,
        elsewhere: Elsewhere = nowhere_else,
    ) -> None:
        """Make them; they are not open yet.

        Args:
            app: the router.
            http: where its listener is.
            grpc: where the other one is, if there is one.
            tls: what all of them shake hands with; None for plain text.
            elsewhere: aborts requests at other routers.
        """
        self._http = HttpServer(app, http.host, http.port, tls)
        self._grpc: GrpcServer | None = None
        if grpc.enabled:
            self._grpc = GrpcServer(app.front, grpc.address(http), grpc, http.tls, elsewhere)

    async def start(self) -> None:
        """Begin to accept. Raises OSError or RuntimeError when a port is taken."""
        await self._http.start()
        if self._grpc is not None:
            await self._grpc.start()

    def abort_here(self, tenant: str, request_id: str) -> int:
        """As ``Generations.abort_here``."""
        return 0 if self._grpc is None else self._grpc.abort_here(tenant, request_id)

    @property
    def alive(self) -> bool:
        """All of them are."""
        return self._http.alive and (self._grpc is None or self._grpc.alive)

    async def leave(self, linger_s: float = LINGER_S) -> None:
        """Take no new connections, and let go of those that idle."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._http.leave(linger_s))
            if self._grpc is not None:
                tasks.create_task(self._grpc.leave())

    async def quiet(self, timeout_s: float) -> None:
        """Wait until nothing is under way."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._http.quiet(timeout_s))
            if self._grpc is not None:
                tasks.create_task(self._grpc.quiet(timeout_s))

    async def stop(self, grace_s: float) -> None:
        """Leave and end; what is under way gets ``grace_s`` seconds, then is cut."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._http.stop(grace_s))
            if self._grpc is not None:
                tasks.create_task(self._grpc.stop(grace_s))
