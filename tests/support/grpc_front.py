"""The gRPC APIs over a router of a test's making, on a port of this machine."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest import mock

import grpc.aio
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from chairlift.cluster.config import GrpcConfig, TlsConfig
from chairlift.deployments import listener
from chairlift.deployments.grpc_server import GrpcServer
from support.http_app import http_app

DETAILS = {
    kind.DESCRIPTOR.full_name: kind
    for kind in (
        error_details_pb2.BadRequest,
        error_details_pb2.ErrorInfo,
        error_details_pb2.RetryInfo,
    )
}


@asynccontextmanager
async def serving_port(
    router: Any = None,
    config: GrpcConfig | None = None,
    tls: TlsConfig | None = None,
    **changes: Any,
) -> AsyncIterator[int]:
    """The port of a server with the same fakes around it as ``http_app`` has."""
    front = http_app(router, **changes).front
    server = GrpcServer(front, ("127.0.0.1", 0), config or GrpcConfig(), tls)
    with mock.patch.object(listener, "SETTLE_S", 0.0):  # nobody else listens on the port
        try:
            yield await server.start()
        finally:
            await server.stop(1.0)


@asynccontextmanager
async def grpc_front(router: Any = None, **changes: Any) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to such a server."""
    async with (
        serving_port(router, **changes) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield channel


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The ``google.rpc`` details of a failed call, by the names of their types."""
    status = rpc_status.from_call(_Ended(error))
    assert status is not None
    assert (status.code, status.message) == (error.code().value[0], error.details())
    details = {}
    for packed in status.details:
        kind = DETAILS[packed.TypeName()]
        details[kind.DESCRIPTOR.name] = detail = kind()
        assert packed.Unpack(detail)
    return details


class _Ended:
    """An error with the interface of the call that it ended."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code, self.details = error.code, error.details
        self.trailing_metadata = error.trailing_metadata
