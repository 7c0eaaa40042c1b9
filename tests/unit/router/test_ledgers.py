"""A ledger on its way out of a worker that runs."""

import asyncio
from collections.abc import Awaitable, Callable

import grpc
import pytest

from chairlift.cluster.errors import NotFound, Overloaded, RequestError, Unavailable
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.proto import worker_pb2_grpc as pb_grpc
from chairlift.router.ledgers import Ledgers
from chairlift.workers.ledger import Ledger
from chairlift.workers.ledger_file import parse_ledger
from chairlift.workers.ledger_records import Snapshot
from chairlift.workers.riders import riders
from chairlift.workers.server import WorkerServer
from support.engines import Rig
from support.ledgers import Crowd, record, replay_bytes


def busy_ledger(ring_bytes: int = 1 << 24, turns: int = 300) -> Ledger:
    rig = Rig()
    ledger, crowd = record(rig, ring_bytes=ring_bytes), Crowd(rig, seed=1)
    for _ in range(turns):
        crowd.step()
    return ledger


def served(ledger: Ledger | None, scenario: Callable[[Ledgers, str], Awaitable[None]]) -> None:
    async def main() -> None:
        rig = Rig()
        server = WorkerServer(rig.info, rig.intake, ledger=ledger)
        endpoint = await server.start()
        try:
            await scenario(Ledgers(lambda: {"r": endpoint}), endpoint)
        finally:
            await server.stop()

    asyncio.run(main())


def test_what_is_fetched_is_the_ledger_and_can_be_replayed() -> None:
    ledger = busy_ledger()

    async def scenario(ledgers: Ledgers, _: str) -> None:
        content = await ledgers.fetch("r")
        assert content == ledger.content()
        assert replay_bytes(content).difference is None

    served(ledger, scenario)


def test_the_newest_steps_come_with_the_snapshot_before_them() -> None:
    ledger = busy_ledger(ring_bytes=1 << 19, turns=2500)

    async def scenario(ledgers: Ledgers, _: str) -> None:
        whole, part = await ledgers.fetch("r"), await ledgers.fetch("r", steps=60)
        assert len(part) < len(whole)
        file = parse_ledger(part)
        assert isinstance(next(iter(file)), Snapshot)
        assert replay_bytes(part).steps >= 60
        there = parse_ledger(whole)
        assert riders(file.header, file, 60) == riders(there.header, there, 60)

    served(ledger, scenario)


def test_one_reader_at_a_time() -> None:
    async def scenario(ledgers: Ledgers, endpoint: str) -> None:
        # Parts beyond what flow control lets through wait for a reader that does not read.
        async with grpc.aio.insecure_channel(endpoint) as channel:
            call = pb_grpc.LedgersStub(channel).Read(pb.LedgerRequest())
            await call.read()
            with pytest.raises(Overloaded) as busy:
                await ledgers.fetch("r")
            assert busy.value.retry_after_s
            while isinstance(await call.read(), pb.LedgerPart):
                pass
        assert await ledgers.fetch("r")

    ledger = busy_ledger()
    ledger._ring.parts = lambda since=0, pause_s=0.0: [bytes(1 << 20)] * 16  # type: ignore[method-assign]
    served(ledger, scenario)


@pytest.mark.parametrize(
    ("replica_id", "error", "code"),
    [("r", Unavailable, "no_ledger"), ("other", NotFound, "no_such_replica")],
)
def test_where_there_is_none_it_is_said_why(
    replica_id: str, error: type[RequestError], code: str
) -> None:
    async def scenario(ledgers: Ledgers, _: str) -> None:
        with pytest.raises(error) as raised:
            await ledgers.fetch(replica_id)
        assert raised.value.code == code

    served(None, scenario)


def test_a_replica_that_does_not_answer_is_unavailable() -> None:
    async def main() -> None:
        with pytest.raises(Unavailable):
            await Ledgers(lambda: {"r": "127.0.0.1:1"}).fetch("r")

    asyncio.run(main())
