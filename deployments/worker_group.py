"""The Serve deployment of worker replicas: one replica of it is one group of Workers.

Owns what Serve hears of the group: where rank 0 listens (and so every router does), whether it is
sound, and when it stops. No token passes through here. Serve takes a group from the members before
it stops it, and routers keep a stream until all on it has ended.
"""

from __future__ import annotations

from dataclasses import asdict

import ray
from ray import serve

from chairlift.cluster.config import ServiceConfig
from chairlift.deployments.data_plane import DataPlane
from chairlift.deployments.membership import Member, kind_of
from chairlift.deployments.rank_actors import RankActors

__all__ = ["WorkerGroup"]


class WorkerGroup:
    """One copy of the model."""

    # Ray awaits an async __init__; type checkers do not know of such a thing.
    async def __init__(  # type: ignore[misc]
        self, config: ServiceConfig, plane: DataPlane
    ) -> None:
        replica_id = serve.get_replica_context().replica_id.unique_id
        group = ray.util.get_current_placement_group()
        self._ranks = RankActors.start(config, plane, replica_id, group)
        self._kind = kind_of(config)
        self._endpoint = await self._ranks.load()

    def record_replica_metadata(self) -> dict[str, str]:
        """Read by Serve once the replica is ready; pushed to every router."""
        return asdict(Member(self._endpoint, self._kind))

    async def check_health(self) -> None:
        """Raises when a Worker is dead, does not answer, or says that it is unfit."""
        await self._ranks.check()

    async def __del__(self) -> None:
        """Called by Serve on a graceful stop; open sequences are handed over to other groups."""
        if hasattr(self, "_ranks"):
            await self._ranks.stop()
