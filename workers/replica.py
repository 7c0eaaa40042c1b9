"""One rank of a worker replica put together: model, engine, loop thread, stream server.

Owns the assembly and the order of start and stop; knows nothing of Ray. What it builds is what
runs in production, in benchmarks and in tests alike. Rank 0, which may be the only one, serves the
stream and keeps the ledger; the others follow it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chairlift.cluster.cluster_token import ClusterToken
from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.model_spec import ModelSpec
from chairlift.cluster.protocol import ReplicaInfo
from chairlift.cluster.tracing import start_tracing
from chairlift.cluster.vocabulary import Vocabulary
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.engine import Engine
from chairlift.workers.grammar_masks import GrammarMasks
from chairlift.workers.grammars import Grammars
from chairlift.workers.intake import Intake, Source
from chairlift.workers.ledger import Ledger
from chairlift.workers.ledger_folder import LedgerFolder
from chairlift.workers.machine_share import cache_blocks
from chairlift.workers.ranks import AgreeingRunner, FollowerIntake, LeadingIntake, same_number
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Runner
from chairlift.workers.server import WorkerServer
from chairlift.workers.simulated_runner import SimulatedRunner
from chairlift.workers.snapshot import describe
from chairlift.workers.visits import Visits

if TYPE_CHECKING:  # it imports torch, which a simulated replica does without
    from grpc import ServerCredentials

    from chairlift.workers.model_loading import AnyRunner
    from chairlift.workers.tensor_parallel import Group, Rendezvous

__all__ = ["Progress", "Replica", "hand_over"]

DRAIN_TIMEOUT_S = 5.0
"""A step that is under way can take this long, or a router to read."""

JOIN_TIMEOUT_S = 5.0
POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a start has come: what is being done, and the fraction of it in 0 … 1."""

    stage: str
    fraction: float


class Replica:
    """One rank of a replica, on one device.

    ``build`` blocks for seconds and belongs in a thread; ``start`` and ``stop`` belong in the
    event loop that serves the stream.

    Args:
        config: the service.
        replica_id: the same for all ranks.
        progress: told how far the start has come.
        rendezvous: where the ranks meet; None for a replica of one.
        read_vocabulary: reads the model's, for the first request with a grammar; None where those
            are refused.
    """

    def __init__(
        self,
        config: ServiceConfig,
        replica_id: str,
        progress: Callable[[Progress], None],
        rendezvous: Rendezvous | None = None,
        read_vocabulary: Callable[[], Vocabulary] | None = None,
    ) -> None:
        self._config = config
        self._replica_id = replica_id
        self._progress = progress
        self._rendezvous = rendezvous
        self._read_vocabulary = read_vocabulary
        self._group: Group | None = None
        self._server: WorkerServer | None = None
        self._visits: Visits | None = None

    def build(self) -> None:
        """Meet the other ranks, read the weights, lay out the KV cache, warm up.

        Raises:
            StartupError: something is not as it must be.
            RankFault: another rank did not come or did not stay.
        """
        config = self._config
        self._join()
        spec = read_spec(resolve_model(config.model.path))
        runner, num_blocks, grammars = self._runner(spec)
        info = self._info(spec, num_blocks)
        scheduler = Scheduler(
            BlockPool(num_blocks, config.engine.block_size),
            config.engine.controls(fair=config.router.fair),
            eos_token_ids=spec.eos_token_ids,
            prefix_cache=config.engine.prefix_cache,
        )
        if self._group is not None:
            self._group.agree(num_blocks)
            runner = AgreeingRunner(runner, self._group)
        if self._group is not None and self._group.rank > 0:
            following = FollowerIntake(self._group)
            self._engine = Engine(scheduler, runner, following, lambda output: None)
            return
        tracer = start_tracing(config.tracing, self._replica_id)
        if tracer is not None:
            self._visits = Visits(tracer, self._replica_id, lambda: self._engine.load.step)
        self._intake = Intake(info, self._visits, grammars)
        ledger = self._ledger(scheduler, info)
        self._server = WorkerServer(
            info,
            self._intake,
            step_age=lambda: self._engine.stuck_for(),
            visits=self._visits,
            ledger=ledger,
        )
        source: Source = self._intake
        if self._group is not None:
            source = LeadingIntake(self._intake, self._group)
        self._engine = Engine(
            scheduler,
            runner,
            source,
            self._server.publish,
            time.monotonic,
            ledger,
        )

    async def start(
        self,
        host: str,
        token: ClusterToken | None = None,
        credentials: ServerCredentials | None = None,
    ) -> str | None:
        """Start the loop's thread and, on rank 0, the stream server; returns ``host:port``.

        The arguments are those of ``WorkerServer.start``.
        """
        endpoint = None
        if self._server is not None:
            endpoint = await self._server.start(host, token, credentials)
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()
        return endpoint

    def fault(self) -> str | None:
        """What makes this rank unfit to serve, or None."""
        if self._engine.failed is not None:
            return self._engine.failed
        if not self._thread.is_alive():
            return "the engine's thread has ended"
        stuck = self._engine.stuck_for()
        if stuck > self._config.workers.stuck_after_s:
            return f"the present step has been under way for {stuck:.0f} s"
        return None

    async def ended(self) -> None:
        """Wait until the loop is over, whatever for."""
        await self._ended.wait()

    async def drain(self) -> None:
        """Hand over every open sequence, and take no new ones; the replica then idles.

        The other ranks do as rank 0 does, and have nothing to do here.
        """
        if self._server is not None:
            await hand_over(self._engine, self._intake, self._server)

    async def stop(self) -> None:
        """Drain, then end the loop and the server; what could not be handed over fails.

        The loops of the other ranks end with rank 0's, which is to be stopped first.
        """
        await self.drain()
        self._engine.stop()
        await asyncio.to_thread(self._thread.join, JOIN_TIMEOUT_S)
        if self._server is not None:
            await self._server.stop()
        if self._visits is not None:
            await asyncio.to_thread(self._visits.close)
        if self._group is not None:
            self._group.close()

    def _join(self) -> None:
        if self._rendezvous is not None:
            from chairlift.workers.tensor_parallel import join

            report = self._report("waiting for the other ranks")
            report(0.0)
            self._group = join(self._rendezvous)
            report(1.0)

    def _run(self) -> None:
        """The loop; where it ends by a fault, the other ranks find out at once."""
        try:
            self._engine.run()
        finally:
            if self._group is not None and self._engine.failed is not None:
                self._group.close()
            # RuntimeError: the event loop is closed, so nobody waits.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended.set)

    def _runner(self, spec: ModelSpec) -> tuple[Runner, int, Grammars | None]:
        """Who computes, the blocks of its KV cache, and what it needs to follow grammars."""
        runner, num_blocks = self._computing(spec)
        if self._read_vocabulary is None:
            return runner, num_blocks, None
        grammars = Grammars(self._read_vocabulary, spec.vocab_size, spec.eos_token_ids)
        runner.masks = GrammarMasks(grammars)
        return runner, num_blocks, grammars

    def _computing(self, spec: ModelSpec) -> tuple[SimulatedRunner | AnyRunner, int]:
        step_ms = self._config.engine.simulated_step_ms
        if step_ms is not None:
            runner = SimulatedRunner(spec.vocab_size, spec.eos_token_ids, step_ms / 1000)
            num_blocks = cache_blocks(self._config, spec)
            group = self._group
            return runner, num_blocks if group is None else same_number(group, num_blocks)
        from chairlift.workers.model_loading import load_runner
        from chairlift.workers.tensor_parallel import Alone

        return load_runner(self._config, spec, self._report, self._group or Alone())

    def _report(self, stage: str) -> Callable[[float], None]:
        return lambda fraction: self._progress(Progress(stage, fraction))

    def _ledger(self, scheduler: Scheduler, info: ReplicaInfo) -> Ledger | None:
        config = self._config.ledger
        if not config.enabled:
            return None
        return Ledger(
            scheduler,
            describe(scheduler, info.model, info.replica_id),
            ring_bytes=config.ring,
            folder=LedgerFolder(config.path, info.replica_id, config.disk),
            always=config.always,
        )

    def _info(self, spec: ModelSpec, num_blocks: int) -> ReplicaInfo:
        engine = self._config.engine
        return ReplicaInfo(
            replica_id=self._replica_id,
            model=self._config.model.name or spec.name,
            vocab_size=spec.vocab_size,
            max_sequence_tokens=min(spec.context_length, num_blocks * engine.block_size),
            max_sequences=engine.max_sequences,
            max_waiting=engine.max_waiting,
            block_size=engine.block_size,
            blocks_total=num_blocks,
        )


async def hand_over(
    engine: Engine, intake: Intake, server: WorkerServer, timeout_s: float = DRAIN_TIMEOUT_S
) -> None:
    """Let every router know that its sequences go on elsewhere, and wait until all are told.

    A stream that has ended is nobody's concern any more; a router that does not read, or a step
    that does not end, is waited for as long as ``timeout_s``.
    """
    engine.hand_over()
    server.drain()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            # In this order: a sequence counts as open until the engine's load is of its last step.
            # What is waited for happens in the engine's thread, which knows no asyncio.Event.
            while intake.num_open or not server.has_told(engine.load.step):  # noqa: ASYNC110 (see above)
                await asyncio.sleep(POLL_S)
