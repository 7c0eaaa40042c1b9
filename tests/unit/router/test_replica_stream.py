"""The router's end of the stream, against a server that says what a test tells it to."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import grpc
import pytest

from chairlift.cluster import wire, wire_frame
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.proto import worker_pb2_grpc as pb_grpc
from chairlift.cluster.protocol import PROTOCOL_VERSION, Answer, Delta, FinishReason, LoadReport
from chairlift.router.dispatch import StreamLost
from chairlift.router.replica_stream import ReplicaStream, StreamState, StreamTiming
from support.engines import replica_info, submission
from support.replicas import eventually

WELCOME = pb.FromWorker(
    welcome=wire.welcome_to_wire(replica_info()),
    frame=wire_frame.frame_to_wire((), LoadReport(step=1)),
)


class ScriptedWorker(pb_grpc.WorkerServicer):
    """Runs ``script`` for each stream; notes what came in."""

    def __init__(self, script: Callable[["ScriptedWorker"], Awaitable[None]]) -> None:
        self.script = script
        self.streams = 0
        self.context = None
        self.messages: list[pb.ToWorker] = []

    async def Stream(self, request_iterator, context) -> None:
        self.streams += 1
        self.context = context
        await self.script(self)

    async def read(self) -> pb.ToWorker:
        message = await self.context.read()
        assert message is not grpc.aio.EOF
        self.messages.append(message)
        return message

    async def greet(self) -> None:
        hello = (await self.read()).hello
        assert hello.protocol_version == PROTOCOL_VERSION and hello.router_id == "router"
        await self.context.write(WELCOME)

    async def say(self, *answers: Answer, deltas: tuple[Delta, ...] = (), step: int = 1) -> None:
        await self.context.write(
            pb.FromWorker(
                answers=[wire.answer_to_wire(answer) for answer in answers],
                frame=wire_frame.frame_to_wire(deltas, LoadReport(step=step, running=step)),
            )
        )

    async def until_cancelled(self) -> None:
        await asyncio.Event().wait()


class Notes:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.lost: list[str] = []

    def receive(self, delta: Delta, at: float) -> None:
        self.deltas.append(delta)

    def lose(self, reason: str) -> None:
        self.lost.append(reason)


@asynccontextmanager
async def stream_to(
    script: Callable[[ScriptedWorker], Awaitable[None]], **timing: float
) -> AsyncIterator[tuple[ReplicaStream, ScriptedWorker]]:
    worker = ScriptedWorker(script)
    server = grpc.aio.server()
    pb_grpc.add_WorkerServicer_to_server(worker, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    quick = {"first_backoff_s": 0.01, "max_backoff_s": 0.02} | timing
    stream = ReplicaStream(
        "r",
        f"127.0.0.1:{port}",
        router_id="router",
        clock=asyncio.get_running_loop().time,
        timing=StreamTiming(**quick),
    )
    try:
        yield stream, worker
    finally:
        await stream.close()
        await server.stop(None)
    assert stream.state is StreamState.CLOSED


async def ready(stream: ReplicaStream) -> None:
    await eventually(lambda: stream.state is StreamState.READY)


def test_answers_and_tokens_of_one_message_are_heard():
    async def script(worker):
        await worker.greet()
        await worker.read()
        done = Delta(7, (1, 2), FinishReason.LENGTH)
        await worker.say(Answer(7), deltas=(done, Delta(99, (5,)), Delta(8, (3,))), step=2)
        await worker.until_cancelled()

    async def main():
        async with stream_to(script) as (stream, _):
            await ready(stream)
            notes = Notes()
            assert await stream.submit(submission(7, n=2), notes) == Answer(7)
            assert notes.deltas == [Delta(7, (1, 2), FinishReason.LENGTH), Delta(8, (3,))]
            assert stream.num_open == 1
            view = stream.view()
            assert view.load.running == 2 and view.load_age_s < 5 and view.info == replica_info()

    asyncio.run(main())


def test_what_is_due_leaves_in_one_message():
    async def script(worker):
        await worker.greet()
        await worker.read()
        await worker.until_cancelled()

    async def main():
        async with stream_to(script) as (stream, worker):
            await ready(stream)
            submits = [
                asyncio.create_task(stream.submit(submission(handle), Notes()))
                for handle in range(1, 6)
            ]
            await eventually(lambda: len(worker.messages) == 2)
            assert [each.handle for each in worker.messages[1].submits] == [1, 2, 3, 4, 5]
            await stream.close()
            results = await asyncio.gather(*submits, return_exceptions=True)
            assert {type(result) for result in results} == {StreamLost}

    asyncio.run(main())


def test_big_prompts_travel_in_messages_of_their_own():
    async def script(worker):
        await worker.greet()
        for _ in range(3):
            await worker.read()
        await worker.until_cancelled()

    async def main():
        async with stream_to(script) as (stream, worker):
            await ready(stream)
            big = submission(2, [1] * 1_000_000)
            submits = [
                asyncio.create_task(stream.submit(each, Notes()))
                for each in (submission(1, [1] * 100_000), big, submission(3))
            ]
            await eventually(lambda: len(worker.messages) == 3)
            assert [[s.handle for s in m.submits] for m in worker.messages[1:]] == [[1], [2, 3]]
            await stream.close()
            await asyncio.wait(submits)

    asyncio.run(main())


def test_cancelled_handles_are_told_to_the_worker_and_heard_of_no_more():
    async def script(worker):
        await worker.greet()
        await worker.read()
        await worker.say(Answer(1))
        cancels = (await worker.read()).cancels
        assert list(cancels) == [1]
        await worker.say(deltas=(Delta(1, (5,)), Delta(2, (6,))), step=9)
        await worker.until_cancelled()

    async def main():
        async with stream_to(script) as (stream, _):
            await ready(stream)
            notes = Notes()
            await stream.submit(submission(1, n=2), notes)
            stream.cancel([1])
            await eventually(lambda: stream.view().load.step == 9)
            assert notes.deltas == [Delta(2, (6,))]

    asyncio.run(main())


@pytest.mark.parametrize("how", ["end", "abort", "malformed", "silence"])
def test_a_break_loses_what_was_open_and_a_new_stream_follows(how):
    async def script(worker):
        await worker.greet()
        if worker.streams > 1:
            await worker.until_cancelled()
        await worker.read()
        await worker.say(Answer(1), deltas=(Delta(1, (5,)),))
        await worker.read()
        if how == "abort":
            await worker.context.abort(grpc.StatusCode.INTERNAL, "no more")
        if how == "malformed":
            await worker.context.write(pb.FromWorker(frame=pb.Frame(handles=[1, 2])))
            await worker.until_cancelled()
        if how == "silence":
            await worker.until_cancelled()

    async def main():
        async with stream_to(script, silence_s=0.3) as (stream, worker):
            await ready(stream)
            notes, unanswered = Notes(), Notes()
            await stream.submit(submission(1, n=3), notes)
            with pytest.raises(StreamLost):
                await stream.submit(submission(9), unanswered)
            assert len(notes.lost) == 1 and notes.lost[0]
            assert not unanswered.lost
            assert stream.num_open == 0
            await eventually(lambda: worker.streams > 1)
            await ready(stream)

    asyncio.run(main())


def test_there_is_no_submitting_while_no_stream_is_up():
    async def script(worker):
        await worker.context.abort(grpc.StatusCode.FAILED_PRECONDITION, "other version")

    async def main():
        async with stream_to(script) as (stream, worker):
            await eventually(lambda: worker.streams > 3)
            assert not stream.view().ready
            assert stream.view().load is None
            with pytest.raises(StreamLost):
                await stream.submit(submission(1), Notes())

    asyncio.run(main())


def test_a_worker_that_does_not_welcome_is_left():
    async def script(worker):
        await worker.read()
        await worker.context.write(pb.FromWorker())
        await worker.until_cancelled()

    async def main():
        async with stream_to(script) as (stream, worker):
            await eventually(lambda: worker.streams > 2)
            assert not stream.view().ready

    asyncio.run(main())


def test_retiring_waits_for_open_handles():
    async def script(worker):
        await worker.greet()
        await worker.read()
        await worker.say(Answer(1))
        await worker.read()
        await worker.say(deltas=(Delta(1, (5,), FinishReason.LENGTH),))
        await worker.until_cancelled()

    async def main():
        async with stream_to(script) as (stream, _):
            await ready(stream)
            notes = Notes()
            await stream.submit(submission(1), notes)
            stream.retire()
            assert not stream.view().ready
            assert stream.state is StreamState.READY
            stream.cancel([99])  # makes the worker go on
            await eventually(lambda: stream.state is StreamState.CLOSED)
            assert notes.deltas == [Delta(1, (5,), FinishReason.LENGTH)]
            assert not notes.lost

    asyncio.run(main())


def test_retiring_ends_at_once_when_nothing_is_open():
    async def script(worker):
        await worker.greet()
        await worker.until_cancelled()

    async def main():
        async with stream_to(script) as (stream, _):
            await ready(stream)
            stream.retire()
            await eventually(lambda: stream.state is StreamState.CLOSED)

    asyncio.run(main())
