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
from chairlift.router.replica_stream import ReplicaStream, StreamState, StreamTiming, Visitor
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
                frame=wire_frame.frame_to_wire(
                    deltas, LoadReport(step=step, running=step, stamp=step)
                ),
            )
        )

    async def until_cancelled(self) -> None:
        await asyncio.Event().wait()


class Notes:
    """A listener that writes down what it hears."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.deltas: list[Delta] = []
        self.lost: list[str] = []

    def answered(self, answer: Answer) -> None:
        self.answers.append(answer)

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
        visitor=Visitor("router"),
        clock=asyncio.get_running_loop().time,
        timing=StreamTiming(**quick),
        on_news=lambda: None,
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
            stream.send(submission(7, n=2), notes)
            await eventually(lambda: notes.deltas)
            assert notes.answers == [Answer(7)]
            assert notes.deltas == [Delta(7, (1, 2), FinishReason.LENGTH), Delta(8, (3,))]
            assert stream.dispatch.num_open == 1
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
            notes = [Notes() for _ in range(5)]
            for handle, each in enumerate(notes):
                stream.send(submission(handle + 1), each)
            await eventually(lambda: len(worker.messages) == 2)
            assert [each.handle for each in worker.messages[1].submits] == [1, 2, 3, 4, 5]
            await stream.close()
            assert all(len(each.lost) == 1 and not each.answers for each in notes)

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
            for each in (submission(1, [1] * 100_000), big, submission(3)):
                stream.send(each, Notes())
            await eventually(lambda: len(worker.messages) == 3)
            assert [[s.handle for s in m.submits] for m in worker.messages[1:]] == [[1], [2, 3]]

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
            stream.send(submission(1, n=2), notes)
            await eventually(lambda: notes.answers)
            stream.cancel([1])
            await eventually(lambda: stream.view().load.step == 9)
            assert notes.deltas == [Delta(2, (6,))]

    asyncio.run(main())


@pytest.mark.parametrize("how", ["end", "abort", "malformed"])
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

    async def main():
        async with stream_to(script) as (stream, worker):
            await ready(stream)
            notes, unanswered = Notes(), Notes()
            stream.send(submission(1, n=3), notes)
            await eventually(lambda: notes.answers)
            era = stream.era
            stream.send(submission(9), unanswered)
            await eventually(lambda: notes.lost)
            assert len(notes.lost) == len(unanswered.lost) == 1
            assert stream.era > era
            assert stream.dispatch.num_open == 0
            await eventually(lambda: worker.streams > 1)
            await ready(stream)

    asyncio.run(main())


def test_a_silent_replica_loses_what_it_runs_and_hears_of_it_when_it_wakes():
    """As with a process that is stopped for a while: nothing is answered twice."""
    awake = asyncio.Event()

    async def script(worker):
        await worker.greet()
        await worker.read()
        await worker.say(Answer(1))
        await awake.wait()
        await worker.say(deltas=(Delta(1, (5,)),), step=3)
        assert list((await worker.read()).cancels) == [1, 2]
        await worker.until_cancelled()

    async def main():
        async with stream_to(script, silence_s=1.0) as (stream, worker):
            await ready(stream)
            notes = Notes()
            stream.send(submission(1, n=2), notes)
            await eventually(lambda: notes.answers)
            for _ in range(4):
                stream.watch(60.0)  # one look counts a quarter of a second at most
            assert not notes.lost and stream.view().ready
            stream.watch(0.25)
            assert len(notes.lost) == 1 and not stream.view().ready
            awake.set()
            await eventually(lambda: stream.view().ready and len(worker.messages) == 3)
            assert not notes.deltas
            assert worker.streams == 1

    asyncio.run(main())


def test_a_stuck_replica_loses_what_it_runs_until_its_step_is_over():
    steps = asyncio.Queue()

    async def script(worker):
        await worker.greet()
        await worker.read()
        await worker.say(Answer(1))
        for stamp in range(5, 9):
            load = LoadReport(step=1, stamp=stamp, step_age_s=await steps.get())
            await worker.context.write(pb.FromWorker(frame=wire_frame.frame_to_wire((), load)))
        await worker.until_cancelled()

    async def main():
        async with stream_to(script, stuck_after_s=5.0) as (stream, _):
            await ready(stream)
            notes = Notes()
            stream.send(submission(1), notes)
            await eventually(lambda: notes.answers)
            steps.put_nowait(4.0)
            await eventually(lambda: stream.view().load.stamp == 5)
            assert not notes.lost
            steps.put_nowait(6.0)
            await eventually(lambda: notes.lost)
            assert not stream.view().ready
            steps.put_nowait(0.0)
            await eventually(lambda: stream.view().ready)
            assert len(notes.lost) == 1

    asyncio.run(main())


def test_a_report_that_was_seen_before_is_not_fresh():
    now = [0.0]

    async def script(worker):
        await worker.greet()
        await worker.read()
        await worker.say(Answer(1), step=4)
        await worker.read()
        await worker.say(deltas=(Delta(1, (5,)),), step=4)
        await worker.until_cancelled()

    async def main():
        async with stream_to(script) as (stream, _):
            await ready(stream)
            stream.dispatch._clock = lambda: now[0]
            notes = Notes()
            stream.send(submission(1), notes)
            await eventually(lambda: notes.answers)
            now[0] = 7.0
            stream.cancel([99])  # makes the worker go on
            await eventually(lambda: notes.deltas)
            assert stream.dispatch.load_at == 0.0

    asyncio.run(main())


def test_there_is_nothing_to_send_to_while_no_stream_is_up():
    async def script(worker):
        await worker.context.abort(grpc.StatusCode.FAILED_PRECONDITION, "other version")

    async def main():
        async with stream_to(script) as (stream, worker):
            await eventually(lambda: worker.streams > 3)
            assert not stream.view().ready
            assert stream.view().load is None

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
            stream.send(submission(1), notes)
            await eventually(lambda: notes.answers)
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
