"""A router's listeners start, leave and end together."""

import asyncio
from collections.abc import Callable

import aiohttp
import grpc
import grpc.aio
import pytest

from chairlift.cluster.config import GrpcConfig, HttpConfig
from chairlift.deployments.doors import Doors
from chairlift.deployments.proto import inference_pb2 as pb
from chairlift.deployments.proto.inference_pb2_grpc import InferenceStub
from support.http_app import MODEL, http_app
from support.service import free_port


async def model_by_http(port: int) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/v1/models") as reply,
    ):
        return str((await reply.json())["data"][0]["id"])


async def model_by_grpc(port: int) -> str:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        return str((await InferenceStub(channel).GetModelInfo(pb.GetModelInfoRequest())).model)


async def fails(ask: Callable[[int], object], port: int) -> None:
    with pytest.raises((aiohttp.ClientError, grpc.aio.AioRpcError)):
        await ask(port)


def test_both_serve_and_both_are_gone_in_the_end():
    async def main() -> None:
        http = HttpConfig(port=free_port())
        doors = Doors(http_app(), http, GrpcConfig())
        assert not doors.alive
        await doors.start()
        _, port = GrpcConfig().address(http)
        assert doors.alive
        assert await model_by_http(http.port) == await model_by_grpc(port) == MODEL
        await doors.leave(linger_s=0.0)
        await doors.quiet(5.0)
        await fails(model_by_http, http.port)
        await fails(model_by_grpc, port)
        await doors.stop(5.0)
        assert not doors.alive

    asyncio.run(main())


def test_grpc_can_be_switched_off():
    async def main() -> None:
        http = HttpConfig(port=free_port())
        doors = Doors(http_app(), http, GrpcConfig(enabled=False))
        await doors.start()
        assert doors.alive
        await fails(model_by_grpc, http.port + 1000)
        assert await model_by_http(http.port) == MODEL
        await doors.stop(5.0)
        assert not doors.alive

    asyncio.run(main())
