"""The listener: what it says of itself, and that leaving costs no client a call."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc
import grpc.aio
import pytest
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chairlift.cluster.config import GrpcConfig
from chairlift.deployments.grpc_server import GrpcServer
from chairlift.deployments.proto import inference_pb2 as pb
from chairlift.deployments.proto import inference_pb2_grpc as pb_grpc
from chairlift.router.flight import Update
from support.asgi_client import until
from support.fake_router import FakeRouter
from support.grpc_front import grpc_front
from support.grpcurl import Reflected
from support.http_app import MODEL, http_app
from support.service import free_port

SERVICES = {
    "chairlift.v1.Inference": {
        *("Generate", "GenerateStream", "Abort", "GetModelInfo"),
        *("GetLoad", "Tokenize", "Detokenize"),
    },
    "inference.GRPCInferenceService": {
        *("ServerLive", "ServerReady", "ServerMetadata", "ModelReady"),
        *("ModelMetadata", "ModelInfer", "ModelStreamInfer"),
    },
    "grpc.health.v1.Health": {"Check", "Watch", "List"},
    "grpc.reflection.v1alpha.ServerReflection": {"ServerReflectionInfo"},
}
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
HI = pb.GenerateRequest(text="hi")


def test_a_client_that_knows_nothing_finds_and_calls_every_method_by_reflection():
    calls = {
        "Generate": {"text": "hi"},
        "GenerateStream": {"chat": {"messages": [{"role": "user", "content": "hi"}]}},
        "GetModelInfo": {},
        "GetLoad": {},
        "Tokenize": {"text": "hi"},
        "Detokenize": {"tokenIds": [104, 105]},
    }

    async def main() -> None:
        async with grpc_front() as channel:
            reflected = Reflected(channel)
            assert await reflected.services() == sorted(SERVICES)
            for service, methods in SERVICES.items():
                assert set(await reflected.methods(service)) == methods
            for name, request in calls.items():
                assert await reflected.call(f"chairlift.v1.Inference/{name}", request)
            path = "inference.GRPCInferenceService/ServerLive"
            assert await reflected.call(path, {}) == [{"live": True}]

    asyncio.run(main())


def test_health_follows_the_replicas_and_needs_no_key():
    async def main() -> None:
        router = FakeRouter()
        live = router.views
        async with grpc_front(router) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service="chairlift.v1.Inference"))
            assert (await watch.read()).status == SERVING
            router.views = [replace(live[0], ready=False)]
            assert (await watch.read()).status == NOT_SERVING
            router.views = live
            assert (await watch.read()).status == SERVING
            for name in ("", *list(SERVICES)[:2]):
                check = await stub.Check(health_pb2.HealthCheckRequest(service=name))
                assert check.status == SERVING
            with pytest.raises(grpc.aio.AioRpcError) as unknown:
                await stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
            assert unknown.value.code() is grpc.StatusCode.NOT_FOUND

    asyncio.run(main())


@contextlib.asynccontextmanager
async def serving(
    name: str, port: int, router: FakeRouter | None = None
) -> AsyncIterator[GrpcServer]:
    front = http_app(router, model_name=name).front
    server = GrpcServer(front, ("127.0.0.1", port), GrpcConfig(connection_s=1.0))
    await server.start()
    try:
        yield server
    finally:
        await server.stop(5.0)


def test_no_call_fails_while_a_server_of_a_shared_port_comes_and_goes():
    async def ask(channel: grpc.aio.Channel, seen: Counter[str]) -> None:
        answer = await pb_grpc.InferenceStub(channel).Generate(HI, wait_for_ready=True)
        seen[answer.model] += 1

    async def client(port: int, keeps: bool, seen: Counter[str], done: asyncio.Event) -> None:
        # A channel's options are part of what connections are shared by.
        options = [("grpc.use_local_subchannel_pool", 1)]
        while not done.is_set():
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
                await ask(channel, seen)
                while keeps and not done.is_set():
                    await ask(channel, seen)

    async def main() -> None:
        port, seen, done = free_port(), Counter[str](), asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(serving("stays", port))
            async with asyncio.TaskGroup() as clients:
                for number in range(8):
                    clients.create_task(client(port, number % 2 == 0, seen, done))
                async with serving("goes", port) as server:
                    await until(lambda: seen["goes"] > 10)
                    await server.leave()
                    await server.quiet(1.5)  # this process has other connections of the port
                after = seen.copy()
                await until(lambda: seen["stays"] > after["stays"] + 10)
                assert seen["goes"] == after["goes"]
                done.set()

    uvloop.run(main())


def test_a_leaving_server_sends_clients_elsewhere_and_lets_streams_end():
    async def main() -> None:
        port, gate = free_port(), asyncio.Event()
        router = FakeRouter(
            lambda request: [[Update(0, "a", 1, None)], gate, [Update(0, "b", 1, "stop")]]
        )
        async with (
            serving("old", port, router) as old,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            stub = pb_grpc.InferenceStub(channel)
            stream = stub.GenerateStream(HI)
            assert (await stream.read()).choices[0].text == "a"
            health = health_pb2_grpc.HealthStub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert (await watch.read()).status == SERVING
            async with serving("new", port):
                await old.leave()
                assert (await watch.read()).status == NOT_SERVING
                model = ""
                while model != "new":
                    model = (await stub.GetModelInfo(pb.GetModelInfoRequest())).model
                gate.set()
                assert (await stream.read()).choices[0].text == "b"
                assert await stream.read() is grpc.aio.EOF
                await old.stop(5.0)  # the watch does not keep it
                assert not old.alive

    asyncio.run(main())


def test_what_still_runs_when_the_grace_is_over_is_cut():
    async def main() -> None:
        router = FakeRouter(lambda request: [[Update(0, "a", 1, None)], asyncio.Event()])
        port = free_port()
        async with (
            serving("old", port, router) as server,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            stream = pb_grpc.InferenceStub(channel).GenerateStream(HI)
            await stream.read()
            await server.stop(0.05)
            with pytest.raises(grpc.aio.AioRpcError):
                await stream.read()
            await until(lambda: router.flights[0].closed)
            router.check_idle()

    asyncio.run(main())


def test_a_port_that_somebody_keeps_for_himself_is_refused():
    async def main() -> None:
        holder = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        async with holder:
            port = holder.sockets[0].getsockname()[1]
            server = GrpcServer(http_app().front, ("127.0.0.1", port), GrpcConfig())
            with pytest.raises(RuntimeError, match=str(port)):
                await server.start()

    asyncio.run(main())


def test_a_message_limit_of_the_configuration_is_obeyed():
    async def main() -> None:
        async with grpc_front(config=GrpcConfig(max_message=100)) as channel:
            stub = pb_grpc.InferenceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Generate(pb.GenerateRequest(text="x" * 101))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (await stub.Generate(HI)).model == MODEL

    asyncio.run(main())
