"""The gRPC listener of one router replica.

Owns the server, its health, and how it leaves without a client noticing; the services behind it
are modules of their own. The port is shared as HTTP's is (``deployments.http_server``).

    serving ──leave──► off the port; connections are served until they are old ──stop──► gone

Every connection is told GOAWAY when it has reached an age, and its client opens another one: so
clients spread over the routers of a port, and leave one that has left the port. To shut the server
down tells GOAWAY too, but fails calls that cross it on their way, so that comes last.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import NoReturn

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from chairlift.cluster.config import GrpcConfig, TlsConfig
from chairlift.deployments.front import Front
from chairlift.deployments.generations import Elsewhere, Generations, nowhere_else
from chairlift.deployments.inference_service import INFERENCE, InferenceService
from chairlift.deployments.kserve_service import KSERVE, KserveService
from chairlift.deployments.listener import (
    has_connections,
    listening_descriptors,
    stop_listening,
)
from chairlift.deployments.tls import credentials

__all__ = ["GrpcServer"]

HEALTH_TICK_S = 0.25
LOOK_S = 0.1
LAST_WORDS_S = 0.25
KEEPALIVE_TIMEOUT_S = 10.0
MIN_PING_S = 5.0
"""Clients that ask more often than this whether we live are sent away."""
MAX_STREAMS = 1024
"""Calls that are under way on one connection; more of them wait in the client."""

_STATUS = health_pb2.HealthCheckResponse
_NAMES = ("", INFERENCE.full_name, KSERVE.full_name)


class GrpcServer:
    """Serves one router until ``stop``."""

    def __init__(
        self,
        front: Front,
        address: tuple[str, int],
        config: GrpcConfig,
        tls: TlsConfig | None = None,
        elsewhere: Elsewhere = nowhere_else,
    ) -> None:
        """Serve ``front``, once it is started.

        Args:
            front: the router.
            address: host and port.
            config: limits.
            tls: files to shake hands with, looked at for each; None for plain text.
            elsewhere: aborts requests at other routers.
        """
        host, self._port = address
        self._front = front
        self._tls = tls
        self._host = f"[{host}]" if ":" in host else host
        self._generations = Generations(front, elsewhere)
        self.abort_here = self._generations.abort_here
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # its stubs lack it
        self._server = grpc.aio.server(options=_options(config))
        self._sockets: frozenset[int] = frozenset()
        self._doctor: asyncio.Task[NoReturn] | None = None
        self._leaving = False
        services = (InferenceService, KserveService)
        handlers = [service(front, self._generations).handler() for service in services]
        self._server.add_generic_rpc_handlers(handlers)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = (*_NAMES[1:], health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)

    async def start(self) -> int:
        """Begin to accept; returns the port. Raises RuntimeError when the port is taken."""
        before = listening_descriptors()
        self._port = self._listen(f"{self._host}:{self._port}")
        await self._server.start()
        self._sockets = listening_descriptors() - before
        await self._tell_health(self._front.ready)
        self._doctor = asyncio.create_task(self._look(), name="health of gRPC")
        return self._port

    def _listen(self, address: str) -> int:
        if self._tls is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, credentials(self._tls))

    @property
    def alive(self) -> bool:
        return self._doctor is not None and not self._doctor.done()

    async def leave(self) -> None:
        """Take no new connections. Those that are open are served; ``quiet`` waits for them.

        Loses nothing while others listen on the same port.
        """
        if not self.alive or self._leaving:
            return
        self._leaving = True
        await self._health.enter_graceful_shutdown()
        await stop_listening(self._sockets)

    async def quiet(self, timeout_s: float) -> None:
        """Wait until all clients have gone elsewhere, and no generation is under way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while has_connections(self._port):  # noqa: ASYNC110  # the library would not tell
                    await asyncio.sleep(LOOK_S)
                await self._generations.none_open.wait()

    async def stop(self, grace_s: float) -> None:
        """Leave and end; generations under way get ``grace_s`` seconds, then are cut."""
        if self._doctor is None:
            return
        await self.leave()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._generations.none_open.wait(), grace_s)
        self._doctor.cancel()
        # The status of what has just ended may be on its way; those who watch our health stay on.
        await self._server.stop(LAST_WORDS_S)

    async def _look(self) -> NoReturn:
        """Keep the health service in the know."""
        known = None
        while True:
            if (ready := self._front.ready) != known:
                await self._tell_health(ready)
                known = ready
            await asyncio.sleep(HEALTH_TICK_S)

    async def _tell_health(self, ready: bool) -> None:
        for name in _NAMES:
            await self._health.set(name, _STATUS.SERVING if ready else _STATUS.NOT_SERVING)


def _options(config: GrpcConfig) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 1),
        ("grpc.max_receive_message_length", config.max_message),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_connection_age_ms", round(config.connection_s * 1000)),
        # Notice a client whose machine vanished, and bear with clients that check on us.
        ("grpc.keepalive_time_ms", round(config.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", round(KEEPALIVE_TIMEOUT_S * 1000)),
        ("grpc.http2.min_ping_interval_without_data_ms", round(MIN_PING_S * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
