"""The Ray actor that holds one shard of a model: rank 0 of its group, and its only rank so far.

A thin shell around ``workers.replica``: Ray calls on one side, the replica's thread and stream
server on the other. torch is imported in the worker's own process, and nowhere above.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import ray

from chairlift.cluster.config import ServiceConfig

if TYPE_CHECKING:
    from chairlift.workers.replica import Progress, Replica

__all__ = ["Worker", "worker_name"]


def worker_name(replica_id: str, rank: int = 0) -> str:
    """The Ray name of a Worker, by which its start-up progress can be followed."""
    return f"chairlift-worker-{replica_id}-{rank}"


class Worker:
    """One shard on one device, made an actor by ``deployments.worker_group``."""

    def __init__(self, config: ServiceConfig, replica_id: str) -> None:
        self._config = config
        self._replica_id = replica_id
        self._progress: Progress | None = None
        self._replica: Replica | None = None

    async def load(self) -> str:
        """Build and start the replica; returns its endpoint. Raises StartupError."""
        replica = await asyncio.to_thread(self._build)
        endpoint = await replica.start(ray.util.get_node_ip_address())
        self._replica = replica
        return endpoint

    async def progress(self) -> tuple[str, float]:
        """Stage of the start, and the fraction of it that is done."""
        if self._progress is None:
            return "starting", 0.0
        return self._progress.stage, self._progress.fraction

    async def fault(self) -> str | None:
        """What makes the replica unfit to serve, or None."""
        return self._replica.fault() if self._replica is not None else "not loaded"

    async def pid(self) -> int:
        """Process id, for those who watch or kill it."""
        return os.getpid()

    async def drain(self) -> None:
        """Hand over every open sequence; the replica takes no new ones."""
        if self._replica is not None:
            await self._replica.drain()

    async def stop(self) -> None:
        """Drain, and end the loop."""
        if self._replica is not None:
            await self._replica.stop()

    def _build(self) -> Replica:
        from chairlift.workers.replica import Replica

        replica = Replica(self._config, self._replica_id, self._note)
        replica.build()
        return replica

    def _note(self, progress: Progress) -> None:
        self._progress = progress
