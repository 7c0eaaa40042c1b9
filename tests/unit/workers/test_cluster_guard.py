"""Who may call a worker."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio
import pytest

from chairlift.cluster.cluster_token import ClusterToken
from chairlift.cluster.errors import Unavailable
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.proto import worker_pb2_grpc as pb_grpc
from chairlift.cluster.protocol import PROTOCOL_VERSION
from chairlift.router.ledgers import Ledgers
from chairlift.router.passport import Passport
from chairlift.workers.server import WorkerServer
from support.engines import Rig
from support.ledgers import record

TOKEN = ClusterToken.new()
NONE, WRONG, ODD = (), ClusterToken.new().metadata(), (("x-chairlift-cluster", "ab-cd"),)


def served(scenario: Callable[[grpc.aio.Channel, str], Awaitable[None]]) -> Rig:
    rig = Rig()

    async def main() -> None:
        server = WorkerServer(rig.info, rig.intake, ledger=record(rig))
        endpoint = await server.start(token=TOKEN)
        try:
            async with grpc.aio.insecure_channel(endpoint) as channel:
                await scenario(channel, endpoint)
        finally:
            await server.stop()

    asyncio.run(main())
    return rig


@pytest.mark.parametrize("metadata", [NONE, WRONG, ODD])
@pytest.mark.parametrize("method", ["Worker/Stream", "Ledgers/Read", "Worker/Nothing"])
def test_without_the_token_nothing_is_read_or_told(metadata, method, caplog) -> None:
    async def scenario(channel: grpc.aio.Channel, _: str) -> None:
        call = channel.stream_stream(f"/chairlift.worker.v1.{method}")(metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.write(pb.ToWorker(hello=pb.Hello(router_id="stranger")).SerializeToString())
            while await call.read() is not grpc.aio.EOF:
                raise AssertionError("it was told something")
            raise AssertionError("it was not refused")
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "fake" not in error.value.details()

    with caplog.at_level(logging.WARNING):
        rig = served(scenario)
    assert rig.intake.num_open == 0
    (line,) = (each.getMessage() for each in caplog.records)
    assert line.startswith("refused a call without the cluster's token, from ipv4:127.0.0.1:")
    for _, text in (*TOKEN.metadata(), *WRONG, *ODD):
        assert text not in caplog.text


def test_with_the_token_a_router_is_welcome() -> None:
    async def scenario(channel: grpc.aio.Channel, endpoint: str) -> None:
        call = pb_grpc.WorkerStub(channel).Stream(metadata=TOKEN.metadata())
        hello = pb.Hello(router_id="r", protocol_version=PROTOCOL_VERSION)
        await call.write(pb.ToWorker(hello=hello))
        assert (await call.read()).HasField("welcome")
        call.cancel()
        assert await Ledgers(lambda: {"r": endpoint}, Passport(TOKEN)).fetch("r")
        with pytest.raises(Unavailable, match="UNAUTHENTICATED"):
            await Ledgers(lambda: {"r": endpoint}).fetch("r")

    served(scenario)
