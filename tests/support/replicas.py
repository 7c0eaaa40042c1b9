"""Worker replicas without a model: the real engine, in its thread, behind the real stream."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import Controls, LoadReport, ReplicaInfo
from chairlift.cluster.tracing import Tracer
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.engine import Engine
from chairlift.workers.fake_runner import FakeRunner
from chairlift.workers.intake import Intake
from chairlift.workers.outbox import Outbox
from chairlift.workers.replica import hand_over
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import StepPlan
from chairlift.workers.server import WorkerServer
from chairlift.workers.visits import Visits
from support.engines import replica_info


async def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Let the loop run until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.002)


class Gate:
    """Lets an engine compute steps, or holds it before the next one; open at first.

    ``step_s``: what each step takes at least. ``holds`` tells that a step is under way and held.
    """

    def __init__(self, step_s: float) -> None:
        self.holds = False
        self._step_s = step_s
        self._open = threading.Event()
        self._open.set()
        self._steps = threading.Semaphore(0)

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def let_through(self, steps: int = 1) -> None:
        """A closed gate lets this many steps pass."""
        self._steps.release(steps)

    def __call__(self, plan: StepPlan) -> None:
        if self._step_s:
            time.sleep(self._step_s)
        deadline = time.monotonic() + 30.0
        while not self._open.is_set() and not self._steps.acquire(timeout=0.005):
            self.holds = True
            assert time.monotonic() < deadline, "the gate was left closed"
        self.holds = False


class BreakableServer(WorkerServer):
    """A server that can be made to report an old load, and to lose its streams."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._frozen: LoadReport | None = None
        self._streams: set[asyncio.Task] = set()

    def freeze(self) -> None:
        self._frozen = self._load

    def cut(self) -> None:
        streams, self._streams = self._streams, set()
        for stream in streams:
            stream.cancel()

    async def Stream(self, request_iterator: AsyncIterator[pb.ToWorker], context: Any) -> None:
        stream = asyncio.current_task()
        assert stream is not None
        self._streams.add(stream)
        try:
            await super().Stream(request_iterator, context)
        except asyncio.CancelledError:
            if stream in self._streams:
                raise  # it is the router that has gone
            stream.uncancel()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")
        finally:
            self._streams.discard(stream)

    def _take(self, outbox: Outbox) -> pb.FromWorker:
        return outbox.take(self._frozen or self._load, self._names)


@dataclass
class FakeReplica:
    info: ReplicaInfo
    endpoint: str
    intake: Intake
    scheduler: Scheduler
    engine: Engine
    server: BreakableServer
    gate: Gate

    @property
    def idle(self) -> bool:
        """Nothing runs, nothing waits, and all blocks are back."""
        load = self.engine.load
        return (self.intake.num_open, load.running, load.waiting, load.blocks_used) == (0, 0, 0, 0)

    async def drain(self) -> None:
        """Hand over all that is open, as a replica does before it stops."""
        await hand_over(self.engine, self.intake, self.server)

    def freeze(self) -> None:
        """From now on every frame carries the load report of this moment."""
        self.server.freeze()

    def cut(self) -> None:
        """End all streams at once, as a broken network would; new ones can be opened."""
        self.server.cut()


@asynccontextmanager
async def fake_replica(
    *,
    eos: Iterable[int] = (),
    token_budget: int = 64,
    heartbeat_s: float = 0.25,
    step_s: float = 0.0,
    tracer: Tracer | None = None,
    **facts,
) -> AsyncIterator[FakeReplica]:
    """A replica that runs; at the end it must have nothing open."""
    info = replica_info(**facts)
    gate = Gate(step_s)
    visits = None
    if tracer is not None:
        visits = Visits(tracer, info.replica_id, lambda: engine.load.step)
    intake = Intake(info, visits)
    server = BreakableServer(
        info,
        intake,
        step_age=lambda: engine.stuck_for(),
        heartbeat_s=heartbeat_s,
        visits=visits,
    )
    controls = Controls(max_sequences=info.max_sequences, token_budget=token_budget)
    scheduler = Scheduler(BlockPool(info.blocks_total, info.block_size), controls, eos)
    runner = FakeRunner(info.vocab_size, block_size=info.block_size, delay=gate)
    engine = Engine(scheduler, runner, intake, server.publish)
    thread = threading.Thread(target=engine.run, name=f"engine of {info.replica_id}")
    endpoint = await server.start()
    replica = FakeReplica(info, endpoint, intake, scheduler, engine, server, gate)
    thread.start()
    try:
        yield replica
        await server.stop()
        gate.open()
        await eventually(lambda: replica.idle)
        scheduler.check_integrity()
    finally:
        gate.open()
        await server.stop()
        engine.stop()
        await asyncio.to_thread(thread.join)
    assert engine.failed is None


def controls_of(replica: FakeReplica, **changes) -> Controls:
    """Those that it started with, but for the changes."""
    budget = replica.scheduler.controls.token_budget
    facts = {"max_sequences": replica.info.max_sequences, "token_budget": budget}
    return Controls(**(facts | changes))


def with_replica(scenario: Callable[[FakeReplica], Coroutine[Any, Any, None]], **arguments) -> None:
    async def main() -> None:
        async with fake_replica(**arguments) as replica:
            await scenario(replica)

    asyncio.run(main())
