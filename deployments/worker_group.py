"""The Serve deployment of worker replicas: one replica of it is one group of Workers.

Owns the group's life: it starts the Worker in its placement group, tells Serve (and so every
router) where rank 0 listens, watches it, and stops it. No token passes through here. Serve takes a
group from the members before it stops it, and routers keep a stream until all on it has ended.
"""

from __future__ import annotations

import asyncio

import ray
from ray import serve
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from chairlift.cluster.config import ServiceConfig
from chairlift.deployments.worker_actor import Worker, worker_name

__all__ = ["WorkerGroup"]

FAULT_CALL_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 15.0


class WorkerGroup:
    """One copy of the model."""

    # Ray awaits an async __init__; type checkers do not know of such a thing.
    async def __init__(self, config: ServiceConfig) -> None:  # type: ignore[misc]
        replica_id = serve.get_replica_context().replica_id.unique_id
        # A worker that dies is not restarted: its whole group is replaced.
        self._worker = (
            ray.remote(num_cpus=0, max_restarts=0)(Worker)
            .options(
                name=worker_name(replica_id),
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=ray.util.get_current_placement_group(),
                    placement_group_bundle_index=0,
                ),
            )
            .remote(config, replica_id)
        )
        self._endpoint: str = await self._worker.load.remote()

    def record_replica_metadata(self) -> dict[str, str]:
        """Read by Serve once the replica is ready; pushed to every router."""
        return {"endpoint": self._endpoint}

    async def check_health(self) -> None:
        """Raises when the Worker is dead, does not answer, or says that it is unfit."""
        fault = await asyncio.wait_for(self._worker.fault.remote(), FAULT_CALL_TIMEOUT_S)
        if fault is not None:
            raise RuntimeError(f"worker unfit: {fault}")

    async def __del__(self) -> None:
        """Called by Serve on a graceful stop; open sequences are handed over to other groups."""
        if hasattr(self, "_worker"):
            await asyncio.wait_for(self._worker.stop.remote(), STOP_TIMEOUT_S)
