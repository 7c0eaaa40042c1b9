"""The Ray actor that holds one rank of a replica: one shard of the model on one device.

A thin shell around ``workers.replica``: Ray calls on one side, the rank's thread and, for rank 0,
its stream server on the other. torch is imported in the worker's own process, and nowhere above.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal

import ray

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.model_files import resolve_model
from chairlift.cluster.vocabulary import Vocabulary
from chairlift.deployments.data_plane import DataPlane
from chairlift.deployments.stream_tls import worker_credentials
from chairlift.router.tokenizer import Tokenizer

if TYPE_CHECKING:
    from chairlift.workers.replica import Progress, Replica

__all__ = ["Worker", "worker_class", "worker_name"]


def worker_name(replica_id: str, rank: int = 0) -> str:
    """The Ray name of a Worker, by which its start-up progress can be followed."""
    return f"chairlift-worker-{replica_id}-{rank}"


class Worker:
    """One rank, made an actor by ``deployments.worker_group``."""

    def __init__(
        self, config: ServiceConfig, plane: DataPlane, replica_id: str, rank: int = 0
    ) -> None:
        self._config = config
        self._plane = plane
        self._replica_id = replica_id
        self._rank = rank
        self._progress: Progress | None = None
        self._replica: Replica | None = None

    async def meeting_place(self, transport: Literal["shared", "gloo", "nccl"]) -> str:
        """Where the ranks can meet; for rank 0."""
        return await asyncio.to_thread(self._meeting_place, transport)

    async def load(
        self, transport: Literal["shared", "gloo", "nccl"] = "shared", address: str | None = None
    ) -> str | None:
        """Build and start the rank; returns the endpoint of rank 0.

        Without an ``address``, it is the only one.

        Raises:
            StartupError: something is not as it must be.
            RankFault: another rank did not come or did not stay.
        """
        token = await asyncio.to_thread(self._plane.find_token, self._config.workers)
        replica = await asyncio.to_thread(self._build, transport, address)
        tls = self._config.workers.tls
        credentials = None if tls is None else await asyncio.to_thread(worker_credentials, tls)
        endpoint = await replica.start(self._host(), token, credentials)
        self._replica = replica
        return endpoint

    async def progress(self) -> tuple[str, float]:
        """Stage of the start, and the fraction of it that is done."""
        if self._progress is None:
            return "starting", 0.0
        return self._progress.stage, self._progress.fraction

    async def fault(self) -> str | None:
        """What makes the rank unfit to serve, or None."""
        return self._replica.fault() if self._replica is not None else "not loaded"

    async def until_fault(self) -> str:
        """Returns why the loop has ended, once it has; for a rank that is loaded."""
        if self._replica is not None:
            await self._replica.ended()
        return str(await self.fault())

    async def node(self) -> str:
        """Where it runs."""
        return str(ray.get_runtime_context().get_node_id())

    async def drain(self) -> None:
        """Hand over every open sequence; the replica takes no new ones."""
        if self._replica is not None:
            await self._replica.drain()

    async def stop(self) -> None:
        """Drain, and end the loop; rank 0 goes first, and takes the others' loops with it."""
        if self._replica is not None:
            await self._replica.stop()

    def _meeting_place(self, transport: Literal["shared", "gloo", "nccl"]) -> str:
        from chairlift.workers.tensor_parallel import new_address

        return new_address(transport, self._host())

    def _host(self) -> str:
        return self._plane.host or str(ray.util.get_node_ip_address())

    def _build(self, transport: Literal["shared", "gloo", "nccl"], address: str | None) -> Replica:
        from chairlift.workers.replica import Replica

        rendezvous = None
        if address is not None:
            from chairlift.workers.tensor_parallel import Rendezvous

            workers = self._config.workers
            rendezvous = Rendezvous(
                self._rank, workers.tensor_parallel, transport, address, workers.start_timeout_s
            )
        replica = Replica(
            self._config, self._replica_id, self._note, rendezvous, self._read_vocabulary
        )
        replica.build()
        return replica

    def _read_vocabulary(self) -> Vocabulary:
        return Tokenizer.load(resolve_model(self._config.model.path)).vocabulary()

    def _note(self, progress: Progress) -> None:
        self._progress = progress


def worker_class(rank: int) -> type[Worker]:
    """Ray names a process after its class, and rank 0 is to be told from the others."""
    return Worker if rank == 0 else type("FollowingWorker", (Worker,), {})
