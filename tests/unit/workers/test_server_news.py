"""What the streams of a replica hear besides tokens: cached blocks, loads, and that it leaves."""

import asyncio

import grpc
import pytest

from chairlift.cluster.block_names import short_name, short_names
from chairlift.cluster.protocol import FinishReason, Refusal, SamplingParams
from chairlift.workers.replica import hand_over
from support.engines import alone
from support.raw_stream import RawStream, raw_stream, submit
from support.replicas import FakeReplica, eventually, with_replica


async def names_agree(replica: FakeReplica, *streams: RawStream) -> None:
    """Read on until each stream knows the names that the pool has."""
    pool = replica.scheduler._pool
    for stream in streams:
        await stream.read_until(
            lambda stream=stream: stream.names == {short_name(name) for name in pool._block_of}
        )


def test_every_stream_knows_the_names_of_the_cached_blocks():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as old:
            await old.send(submit(1, range(21), max_tokens=3))
            await old.read_until(lambda: old.finishes)
            await names_agree(replica, old)
            assert old.names >= set(short_names(range(20), "", 4))
            async with raw_stream(replica.endpoint) as new:
                await new.read()
                assert (new.events[0].reset, new.names) == (True, old.names)
                for handle in range(2, 12):  # more than the pool holds, so some are evicted
                    await new.send(submit(handle, range(handle, handle + 30), max_tokens=20))
                    await new.read_until(lambda handle=handle: handle in new.finishes)
                await names_agree(replica, old, new)
                assert not new.names >= set(short_names(range(20), "", 4))
                assert not any(events.reset for events in old.events[1:])

    with_replica(scenario, blocks_total=24, max_sequence_tokens=96, heartbeat_s=0.02)


def test_every_report_that_is_made_anew_has_a_stamp_of_its_own():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            loads = []
            for _ in range(4):
                await stream.read()
                loads.append(stream.load)
            assert len({load.stamp for load in loads}) == 4
            assert {load.step for load in loads} == {0}

    with_replica(scenario, heartbeat_s=0.02)


def test_streams_hear_how_many_they_are():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as one:
            await one.read_until(lambda: one.load.routers == 1 if one.load else False)
            async with raw_stream(replica.endpoint) as two:
                await two.read()
                assert two.load.routers == 2
                await one.read_until(lambda: one.load.routers == 2)
            await one.read_until(lambda: one.load.routers == 1)

    with_replica(scenario, heartbeat_s=100.0)


def test_heartbeats_tell_of_a_step_that_does_not_end():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            replica.gate.close()
            await stream.send(submit(1))
            await stream.read_until(lambda: stream.load and stream.load.step_age_s > 0)
            replica.gate.open()
            await stream.read_until(lambda: stream.finishes and stream.load.step_age_s == 0)

    with_replica(scenario, heartbeat_s=0.02)


def test_a_frozen_replica_tells_tokens_with_an_old_load():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            await stream.read()
            replica.freeze()
            await stream.send(submit(1, max_tokens=9))
            await stream.read_until(lambda: stream.finishes)
            stamp = stream.load.stamp
            await stream.read()
            assert (stream.load.stamp, stream.load.step) == (stamp, 0)
            assert len(stream.tokens[1]) == 9

    with_replica(scenario)


def test_cut_streams_end_without_a_word_and_the_replica_lives_on():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as one, raw_stream(replica.endpoint) as two:
            for stream in (one, two):
                await stream.send(submit(1, max_tokens=4000))
                await stream.read_until(lambda stream=stream: stream.tokens)
            replica.cut()
            for stream in (one, two):
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await stream.read_to_end()
                assert error.value.code() is grpc.StatusCode.UNAVAILABLE
                assert not stream.finishes
            await eventually(lambda: replica.idle)
        async with raw_stream(replica.endpoint) as again:
            await again.send(submit(1))
            await again.read_until(lambda: again.finishes)
            assert again.load.routers == 1

    with_replica(scenario, step_s=0.002)


class TestDrain:
    def test_every_open_sequence_is_handed_over_once_with_the_tokens_that_it_has(self):
        async def scenario(replica):
            async with raw_stream(replica.endpoint) as one, raw_stream(replica.endpoint) as two:
                for stream in (one, two):
                    await stream.send(
                        *(submit(i, (i, 3), max_tokens=2000, seed=i) for i in range(1, 11))
                    )
                    await stream.read_until(lambda stream=stream: len(stream.tokens) >= 2)
                await replica.drain()
                assert replica.idle
                for stream in (one, two):
                    await stream.send(submit(99))
                    await stream.read_until(
                        lambda stream=stream: len(stream.finishes) == 10 and 99 in stream.answers
                    )
                    assert stream.load.draining
                    assert set(stream.finishes.values()) == {FinishReason.HANDED_OVER}
                    assert stream.answers.pop(99)[0] == Refusal.DRAINING
                    assert {refusal for refusal, _ in stream.answers.values()} == {0}
                    for i, told in stream.tokens.items():
                        sampling = SamplingParams(max_tokens=len(told) + 1, seed=i)
                        tokens, _ = alone((i, 3), sampling)
                        assert tokens[:-1] == tuple(told)
                assert all(one.tokens.values())
                assert any(two.tokens.values()) and not all(two.tokens.values())

        with_replica(scenario, max_sequences=16, max_waiting=100, step_s=0.001)

    def test_an_idle_replica_tells_at_once_that_it_leaves(self):
        async def scenario(replica):
            async with raw_stream(replica.endpoint) as stream:
                await stream.read()
                await replica.drain()
                await stream.read_until(lambda: stream.load.draining)

        with_replica(scenario, heartbeat_s=100.0)

    def test_a_router_that_has_gone_does_not_hold_it_up(self):
        async def scenario(replica):
            replica.gate.close()
            async with raw_stream(replica.endpoint) as gone, raw_stream(replica.endpoint) as here:
                for stream in (gone, here):
                    await stream.send(submit(1, max_tokens=400))
                    await stream.read_until(lambda stream=stream: stream.answers)
                drained = asyncio.create_task(replica.drain())
                gone.call.cancel()
                replica.gate.open()
                await drained
                assert replica.idle
                await here.read_until(lambda: here.finishes)
                assert here.finishes == {1: FinishReason.HANDED_OVER}

        with_replica(scenario)

    def test_a_step_that_does_not_end_holds_it_up_for_a_bounded_time(self):
        async def scenario(replica):
            async with raw_stream(replica.endpoint) as stream:
                replica.gate.close()
                await stream.send(submit(1))
                await eventually(lambda: replica.gate.holds)
                await hand_over(replica.engine, replica.intake, replica.server, timeout_s=0.05)
                assert not replica.idle
                replica.gate.open()
                await stream.read_until(lambda: stream.finishes)

        with_replica(scenario)
