"""A request is aborted by name, whichever router holds it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest

from chairlift.cluster.config import GrpcConfig
from chairlift.cluster.errors import Overloaded, Unavailable
from chairlift.deployments.grpc_server import GrpcServer
from chairlift.deployments.other_routers import MAX_ROUNDS, MAX_WAITING, OtherRouters
from chairlift.deployments.proto import inference_pb2 as pb
from chairlift.deployments.proto.inference_pb2_grpc import InferenceStub
from chairlift.router.flight import Update
from support.asgi_client import until
from support.fake_router import FakeRouter
from support.grpc_front import details_of
from support.http_app import http_app
from support.inference_stub import HI, TENANTS, key, read

ASK = ("x-request-id", "ask")
SILENT = ConnectionError("no answer")


def blocked(request: Any) -> list[Any]:
    """One turn, and then nothing for ever."""
    return [[Update(0, "a", 1, None)], asyncio.Event()]


@contextlib.asynccontextmanager
async def two_routers() -> AsyncIterator[tuple[list[InferenceStub], list[FakeRouter]]]:
    """Each asks the other one."""
    routers = [FakeRouter(blocked), FakeRouter(blocked)]
    servers: list[GrpcServer] = []

    def asking(number: int) -> OtherRouters:
        async def ask(tenant: str, request_id: str) -> list[int | BaseException]:
            return [servers[1 - number].abort_here(tenant, request_id)]

        return OtherRouters(ask)

    async with contextlib.AsyncExitStack() as stack:
        stubs = []
        for number, router in enumerate(routers):
            front = http_app(router, tenants=TENANTS).front
            server = GrpcServer(
                front, ("127.0.0.1", 0), GrpcConfig(), elsewhere=asking(number).abort
            )
            servers.append(server)
            port = await server.start()
            stack.push_async_callback(server.stop, 0.0)
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
            stubs.append(InferenceStub(await stack.enter_async_context(channel)))
        yield stubs, routers


def test_a_request_is_aborted_through_a_router_that_does_not_hold_it() -> None:
    async def main() -> None:
        async with asyncio.timeout(20.0), two_routers() as (stubs, routers):
            name = ("x-request-id", "mine")
            streams = [
                asyncio.create_task(read(stub.GenerateStream(HI, metadata=(*key("a"), name))))
                for stub in (stubs[0], stubs[1])
            ]
            await until(lambda: all(each.flights and each.flights[0].waiting for each in routers))
            refusals = []
            for request_id, asker in (("mine", "o"), ("unknown", "o"), ("unknown", "a")):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    wanted = pb.AbortRequest(request_id=request_id)
                    await stubs[1].Abort(wanted, metadata=(*key(asker), ASK))
                found = details_of(refused.value)
                refusals.append((refused.value.code(), refused.value.details(), str(found)))
            assert len(set(refusals)) == 1 and refusals[0][0] is grpc.StatusCode.NOT_FOUND
            assert not any(stream.done() for stream in streams)
            wanted = pb.AbortRequest(request_id="mine")
            assert (await stubs[1].Abort(wanted, metadata=key("a"))).aborted == 2
            for stream in streams:
                with pytest.raises(grpc.aio.AioRpcError) as ended:
                    await stream
                assert ended.value.code() is grpc.StatusCode.CANCELLED
            for router in routers:
                router.check_idle()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("answers", "ended"), [([0, 0], 0), ([1, 2], 3), ([1, SILENT], 1), ([], 0)]
)
def test_what_some_have_ended_counts_also_where_others_are_silent(answers, ended) -> None:
    async def ask(tenant: str, request_id: str) -> list[int | BaseException]:
        assert (tenant, request_id) == ("acme", "r")
        return answers

    assert asyncio.run(OtherRouters(ask).abort("acme", "r")) == ended


def test_nothing_found_is_not_said_where_a_router_did_not_answer(caplog) -> None:
    async def one_is_silent(tenant: str, request_id: str) -> list[int | BaseException]:
        return [0, SILENT]

    async def broken(tenant: str, request_id: str) -> list[int | BaseException]:
        raise SILENT

    async def slow(tenant: str, request_id: str) -> list[int | BaseException]:
        await asyncio.Event().wait()
        return []

    for ask in (one_is_silent, broken, slow):
        with pytest.raises(Unavailable, match="not every router"):
            asyncio.run(OtherRouters(ask, answer_s=0.01).abort("acme", "secret-name"))
    assert "secret-name" not in caplog.text


def test_rounds_are_bounded_and_so_is_who_waits_for_one() -> None:
    asked, go_on = [], asyncio.Event()

    async def ask(tenant: str, request_id: str) -> list[int | BaseException]:
        asked.append(request_id)
        await go_on.wait()
        return [1]

    async def main() -> None:
        others = OtherRouters(ask, answer_s=20.0)
        calls = [asyncio.create_task(others.abort("t", f"{i}")) for i in range(MAX_WAITING)]
        await until(lambda: len(asked) == MAX_ROUNDS)
        with pytest.raises(Overloaded):
            await others.abort("t", "one too many")
        go_on.set()
        assert await asyncio.gather(*calls) == [1] * MAX_WAITING
        assert len(asked) == MAX_WAITING
        assert await others.abort("t", "again") == 1

    asyncio.run(main())
