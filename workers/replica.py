"""One worker replica put together: model, engine, loop thread, stream server.

Owns the assembly and the order of start and stop; knows nothing of Ray. What it builds is what
runs in production, in benchmarks and in tests alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.model_spec import ModelSpec
from chairlift.cluster.protocol import ReplicaInfo
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.engine import Engine
from chairlift.workers.intake import Intake
from chairlift.workers.ledger import Ledger
from chairlift.workers.ledger_folder import LedgerFolder
from chairlift.workers.machine_share import cache_blocks
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Runner
from chairlift.workers.server import WorkerServer
from chairlift.workers.simulated_runner import SimulatedRunner
from chairlift.workers.snapshot import describe

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
    """A replica on one device.

    ``build`` blocks for seconds and belongs in a thread; ``start`` and ``stop`` belong in the
    event loop that serves the stream.
    """

    def __init__(
        self, config: ServiceConfig, replica_id: str, progress: Callable[[Progress], None]
    ) -> None:
        self._config = config
        self._replica_id = replica_id
        self._progress = progress

    def build(self) -> None:
        """Read the weights, lay out the KV cache, warm up. Raises StartupError."""
        config = self._config
        spec = read_spec(resolve_model(config.model.path))
        runner, num_blocks = self._runner(spec)
        info = self._info(spec, num_blocks)
        self._intake = Intake(info)
        self._server = WorkerServer(info, self._intake, step_age=lambda: self._engine.stuck_for())
        scheduler = Scheduler(
            BlockPool(num_blocks, config.engine.block_size),
            config.engine.controls(fair=config.router.fair),
            eos_token_ids=spec.eos_token_ids,
            prefix_cache=config.engine.prefix_cache,
        )
        self._engine = Engine(
            scheduler,
            runner,
            self._intake,
            self._server.publish,
            time.monotonic,
            self._ledger(scheduler, info),
        )

    async def start(self, host: str) -> str:
        """Start the loop's thread and the stream server; returns the endpoint ``host:port``."""
        endpoint = await self._server.start(host)
        self._thread = threading.Thread(target=self._engine.run, name="engine", daemon=True)
        self._thread.start()
        return endpoint

    def fault(self) -> str | None:
        """What makes this replica unfit to serve, or None."""
        if self._engine.failed is not None:
            return self._engine.failed
        if not self._thread.is_alive():
            return "the engine's thread has ended"
        stuck = self._engine.stuck_for()
        if stuck > self._config.workers.stuck_after_s:
            return f"the present step has been under way for {stuck:.0f} s"
        return None

    async def drain(self) -> None:
        """Hand over every open sequence, and take no new ones; the replica then idles."""
        await hand_over(self._engine, self._intake, self._server)

    async def stop(self) -> None:
        """Drain, then end the loop and the server; what could not be handed over fails."""
        await self.drain()
        self._engine.stop()
        await asyncio.to_thread(self._thread.join, JOIN_TIMEOUT_S)
        await self._server.stop()

    def _runner(self, spec: ModelSpec) -> tuple[Runner, int]:
        """Who computes, and the blocks of its KV cache."""
        step_ms = self._config.engine.simulated_step_ms
        if step_ms is not None:
            runner = SimulatedRunner(spec.vocab_size, spec.eos_token_ids, step_ms / 1000)
            return runner, cache_blocks(self._config, spec)
        from chairlift.workers.model_loading import load_runner

        return load_runner(self._config, spec, self._report)

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
