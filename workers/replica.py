"""One worker replica put together: model, engine, loop thread, stream server.

Owns the assembly and the order of start and stop; knows nothing of Ray. What it builds is what
runs in production, in benchmarks and in tests alike.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.machine import read_cores, read_memory
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.model_spec import ModelSpec
from chairlift.cluster.protocol import ReplicaInfo
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.engine import Engine
from chairlift.workers.intake import Intake
from chairlift.workers.kv_cache import blocks_for
from chairlift.workers.ledger import Ledger
from chairlift.workers.ledger_folder import LedgerFolder
from chairlift.workers.model_runner import ModelRunner
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.server import WorkerServer
from chairlift.workers.snapshot import describe
from chairlift.workers.weights import load_weights

__all__ = ["Progress", "Replica"]


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
        threads = worker_threads(config)
        torch.set_num_threads(threads)
        spec = read_spec(resolve_model(config.model.path))
        weights = load_weights(spec, self._report("reading weights"))
        num_blocks = blocks_for(
            config.engine.kv_memory,
            spec,
            block_size=config.engine.block_size,
            available=read_memory().available // config.workers.replicas,
        )
        runner = ModelRunner(
            spec,
            weights,
            num_blocks=num_blocks,
            block_size=config.engine.block_size,
            kernels=config.engine.kernels,
            threads=threads,
        )
        del weights
        runner.warm_up(self._report("warming up"))
        info = self._info(spec, num_blocks)
        self._intake = Intake(info)
        self._server = WorkerServer(info, self._intake)
        scheduler = Scheduler(
            BlockPool(num_blocks, config.engine.block_size),
            config.engine.controls(),
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

    async def stop(self) -> None:
        """End every open sequence, then the loop and the server."""
        self._engine.stop()
        await asyncio.to_thread(self._thread.join, 10.0)
        await self._server.stop()

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


def worker_threads(config: ServiceConfig) -> int:
    """CPU threads for one replica: as configured, or a fair share of the usable cores."""
    if config.workers.threads != "auto":
        return config.workers.threads
    return max(1, int(read_cores().usable) // config.workers.replicas)
