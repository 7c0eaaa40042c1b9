"""Calls of ``chairlift.v1.Inference`` to a server with fakes around it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest

from chairlift.cluster.tenants import Tenant, Tenants, hash_key
from chairlift.deployments.proto import inference_pb2 as pb
from chairlift.deployments.proto import inference_pb2_grpc as pb_grpc
from support.fake_router import FakeRouter
from support.grpc_front import grpc_front

HI = pb.GenerateRequest(text="hi")
CHAT_HI = pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="hi")]))
ACME, OTHER = Tenant("acme"), Tenant("other")
TENANTS = Tenants({hash_key("a"): ACME, hash_key("o"): OTHER}, None)

Stub = pb_grpc.InferenceStub
Scenario = Callable[[Any], Coroutine[Any, Any, Any]]


def key(name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {name}"),)


def with_stub(scenario: Scenario, router: Any = None, **changes: Any) -> Any:
    async def main() -> Any:
        async with grpc_front(router or FakeRouter(), **changes) as channel:
            async with asyncio.timeout(20.0):
                return await scenario(Stub(channel))

    return asyncio.run(main())


async def read(stream: Any) -> list[pb.GenerateChunk]:
    return [chunk async for chunk in stream]


def failure(scenario: Scenario, router: Any = None, **changes: Any) -> grpc.aio.AioRpcError:
    """How it fails; the next call must be served."""

    async def fails(stub: Stub) -> grpc.aio.AioRpcError:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await scenario(stub)
        if "tenants" not in changes:
            await stub.GetModelInfo(pb.GetModelInfoRequest())
        return caught.value

    return with_stub(fails, router, **changes)
