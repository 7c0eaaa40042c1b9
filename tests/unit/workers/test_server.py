"""The worker's end of the stream, spoken to by a raw stub."""

import asyncio

import grpc
import pytest

from chairlift.cluster import wire
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import (
    PROTOCOL_VERSION,
    BlockEvents,
    Controls,
    Delta,
    FinishReason,
    LoadReport,
    Refusal,
    SamplingParams,
)
from chairlift.workers.engine import StepOutput
from support.engines import alone
from support.raw_stream import HELLO, raw_stream, submit
from support.replicas import eventually, with_replica


def test_welcome_and_load_come_first():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            message = await stream.read()
            assert wire.welcome_from_wire(message.welcome) == replica.info
            first = LoadReport(blocks_total=replica.info.blocks_total, stamp=1, routers=1)
            assert stream.load == first
            assert stream.events == [BlockEvents(reset=True)]

    with_replica(scenario)


@pytest.mark.parametrize(
    "first",
    [
        pb.ToWorker(),
        pb.ToWorker(submits=[submit(1)]),
        pb.ToWorker(hello=pb.Hello(protocol_version=PROTOCOL_VERSION + 1)),
    ],
    ids=["empty", "submit", "other version"],
)
def test_a_stream_that_does_not_begin_with_hello_is_refused(first):
    async def scenario(replica):
        async with raw_stream(replica.endpoint, first) as stream:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stream.read()
            assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert f"version {PROTOCOL_VERSION}" in error.value.details()

    with_replica(scenario)


def test_tokens_are_those_of_the_engine():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            await stream.send(submit(7, (5, 6), n=2, max_tokens=9, seed=3))
            await stream.read_until(lambda: len(stream.finishes) == 2)
            sampling = SamplingParams(max_tokens=9, seed=3)
            for choice in (0, 1):
                tokens, finish = alone((5, 6), sampling, choice)
                assert tuple(stream.tokens[7 + choice]) == tokens
                assert stream.finishes[7 + choice] is finish

    with_replica(scenario)


def test_an_answer_comes_before_the_tokens_that_it_allows():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            for handle in range(1, 9):
                await stream.send(submit(handle, max_tokens=3))
            while len(stream.finishes) < 8:
                message = await stream.read()
                assert set(message.frame.handles) <= set(stream.answers)

    with_replica(scenario)


def test_malformed_submissions_are_refused_and_the_stream_goes_on():
    def broken(handle: int, **changes) -> pb.Submit:
        message = submit(handle)
        for field, value in changes.items():
            target = message.sampling if field == "max_tokens" else message
            setattr(target, field, value)
        return message

    no_prompt = submit(1)
    no_prompt.ClearField("prompt")

    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            await stream.send(
                no_prompt,
                broken(2, n=0),
                broken(3, max_tokens=0),
                pb.Submit(handle=4),
                submit(5, (10**6,)),
                submit(6),
            )
            await stream.call.write(pb.ToWorker(controls=pb.Controls(version=9, batching="?")))
            await stream.send(submit(7))
            await stream.read_until(lambda: {6, 7} <= stream.finishes.keys())
            refusals = {handle: refusal for handle, (refusal, _) in stream.answers.items()}
            assert refusals == {**dict.fromkeys(range(1, 6), Refusal.INVALID), 6: 0, 7: 0}
            assert stream.answers[1][1].startswith("prompt:")
            assert stream.answers[3][1].startswith("max_tokens:")

    with_replica(scenario)


def test_absurd_numbers_of_choices_are_refused():
    """Guards against work in proportion to a number that somebody else wrote."""

    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            message = submit(1)
            message.n = 2**32 - 1
            await stream.send(message)
            await stream.read_until(lambda: 1 in stream.answers)
            assert stream.answers[1][0] == Refusal.QUEUE_FULL

    with_replica(scenario)


def test_bytes_that_are_no_message_end_only_their_stream():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as good:
            await good.read()
            replica.gate.close()
            await good.send(submit(1, max_tokens=50))
            async with grpc.aio.insecure_channel(replica.endpoint) as channel:
                bad = channel.stream_stream("/chairlift.worker.v1.Worker/Stream")()
                await bad.write(HELLO.SerializeToString())
                await bad.read()
                await bad.write(b"\xff\xff\xff\xff")
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    async with asyncio.timeout(20.0):
                        while await bad.read() is not grpc.aio.EOF:
                            pass
                assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            replica.gate.open()
            await good.read_until(lambda: 1 in good.finishes)

    with_replica(scenario)


def test_streams_do_not_share_handles():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as one, raw_stream(replica.endpoint) as two:
            await one.send(submit(1, (1, 2), max_tokens=20))
            await two.send(submit(1, (3, 4), max_tokens=20))
            for stream, prompt in ((one, (1, 2)), (two, (3, 4))):
                await stream.read_until(lambda stream=stream: stream.finishes)
                tokens, _ = alone(prompt, SamplingParams(max_tokens=20))
                assert tuple(stream.tokens[1]) == tokens

    with_replica(scenario)


@pytest.mark.parametrize("how", ["half-close", "cancel", "channel"])
def test_what_a_gone_router_asked_for_is_given_up(how):
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            await stream.send(*(submit(handle, max_tokens=4000) for handle in range(1, 7)))
            await stream.read_until(lambda: stream.tokens)
            assert not replica.idle
            if how == "half-close":
                await stream.call.done_writing()
                while await stream.read() is not None:
                    pass
            elif how == "cancel":
                stream.call.cancel()
        await eventually(lambda: replica.idle)

    with_replica(scenario)


def test_a_cancelled_handle_ends():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            replica.gate.close()
            await stream.send(submit(1, max_tokens=4000), submit(2, max_tokens=4))
            await stream.send(cancels=(1, 99))
            await stream.send(submit(3, max_tokens=4))
            await stream.read_until(lambda: 3 in stream.answers)  # so the cancellation is there
            replica.gate.open()
            await stream.read_until(lambda: len(stream.finishes) == 3)
            ended = FinishReason.LENGTH
            assert stream.finishes == {1: FinishReason.CANCELLED, 2: ended, 3: ended}

    with_replica(scenario)


def test_an_idle_stream_hears_the_load_and_its_heartbeat():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as idle, raw_stream(replica.endpoint) as busy:
            replica.gate.close()
            await busy.send(submit(1, max_tokens=4000), submit(2, max_tokens=4000))
            replica.gate.let_through(2)
            await idle.read_until(lambda: idle.load and idle.load.running == 2)
            step = idle.load.step
            for _ in range(3):
                await idle.read()
            assert idle.load.step <= step + 2
            assert not idle.tokens

    with_replica(scenario, heartbeat_s=0.02)


def test_news_of_many_steps_wait_joined_for_a_router_that_does_not_read():
    """Guards against frames that pile up, one a step, behind a slow network."""

    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            await stream.read()
            deltas = 20_000
            for step in range(1, deltas + 1):
                finish = FinishReason.LENGTH if step == deltas else None
                output = StepOutput({1: [Delta(1, (step,), finish)]}, LoadReport(step=step))
                replica.server.publish(output)
            messages = 0
            while 1 not in stream.finishes:
                await stream.read()
                messages += 1
            assert stream.tokens[1] == list(range(1, deltas + 1))
            assert messages < deltas / 2

    with_replica(scenario)


def test_stop_ends_streams_cleanly_after_their_last_news():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            await stream.read()
            replica.server.publish(
                StepOutput({1: [Delta(1, (5,), FinishReason.LENGTH)]}, LoadReport(step=1))
            )
            await asyncio.sleep(0)  # the loop takes it in
            await replica.server.stop()
            while await stream.read() is not None:
                pass
            assert stream.tokens == {1: [5]}
            assert await stream.call.code() is grpc.StatusCode.OK

    with_replica(scenario)


def test_a_prompt_of_100_000_tokens_fits():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            await stream.send(submit(1, [999_999] * 100_000, max_tokens=1))
            await stream.read_until(lambda: 1 in stream.finishes)

    facts = {"vocab_size": 10**6, "max_sequence_tokens": 200_000, "blocks_total": 110}
    with_replica(scenario, token_budget=100_000, block_size=1000, **facts)


def test_controls_reach_the_engine():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            controls = Controls(version=5, max_sequences=1)
            await stream.call.write(pb.ToWorker(controls=wire.controls_to_wire(controls)))
            replica.gate.close()
            await stream.send(*(submit(handle, max_tokens=5) for handle in range(1, 4)))
            replica.gate.let_through(2)
            await stream.read_until(lambda: stream.load and stream.load.step >= 2)
            assert (stream.load.running, stream.load.waiting) == (1, 2)

    with_replica(scenario)


def test_a_router_that_does_not_read_is_not_read_from_but_gets_every_answer():
    async def scenario(replica):
        async with raw_stream(replica.endpoint) as stream:
            for handle in range(1, 5001):
                await stream.send(pb.Submit(handle=handle))
            await stream.read_until(lambda: len(stream.answers) == 5000)

    with_replica(scenario)
