"""The Workers of one replica, a rank each: started together, watched, and ended together.

Owns their Ray actors, and the rule that a group is as sound as its worst rank. What is told to
Serve is ``worker_group``'s.

A rank that dies breaks a call that lasts as long as the rank does, so that is known at once; one
that is silent misses the answer to a short call; one whose loop has ended by a fault says so. In
each case all others are killed. Rank 0 is first given a moment where its own loop may have handed
over what is open; where a rank has died, its streams just break.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from chairlift.cluster.config import ServiceConfig
from chairlift.deployments.data_plane import DataPlane
from chairlift.deployments.worker_actor import worker_class, worker_name

__all__ = ["RankActors"]

PING_S = 0.5
SILENCE_S = 1.5
"""Longer than it takes the ranks to miss one of them, for these can still hand over."""
HAND_OVER_S = 0.5
FAULT_CALL_TIMEOUT_S = 5.0
STOP_TIMEOUT_S = 15.0


class RankActors:
    """All ranks of one replica.

    ``workers`` are actors of ``worker_actor.Worker``, in order of rank.
    """

    def __init__(self, config: ServiceConfig, workers: Sequence[Any], *, on_gpus: bool) -> None:
        self.fault: str | None = None
        """Why the group has ended, once it has."""
        self._config = config
        self._workers = workers
        self._on_gpus = on_gpus
        self._address: str | None = None
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    def start(
        cls, config: ServiceConfig, plane: DataPlane, replica_id: str, group: PlacementGroup
    ) -> Self:
        """Start an actor in each bundle of the placement group."""
        on_gpus = "GPU" in group.bundle_specs[0]
        workers = [
            # A worker that dies is not restarted: its whole group is replaced.
            ray.remote(num_cpus=0, num_gpus=int(on_gpus), max_restarts=0)(worker_class(rank))
            .options(
                name=worker_name(replica_id, rank),
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    placement_group=group, placement_group_bundle_index=rank
                ),
            )
            .remote(config, plane, replica_id, rank)
            for rank in range(config.workers.tensor_parallel)
        ]
        return cls(config, workers, on_gpus=on_gpus)

    async def load(self) -> str:
        """Load all at once; returns rank 0's endpoint. Raises what the first to fail has raised."""
        first = self._workers[0]
        if len(self._workers) == 1:
            return str(await first.load.remote())
        transport = await self._transport()
        self._address = await first.meeting_place.remote(transport)
        try:
            calls = [worker.load.remote(transport, self._address) for worker in self._workers]
            endpoint, *_ = await _all(calls)
        except BaseException:
            self._kill()
            raise
        self._watch = asyncio.create_task(self._end_at_first_fault())
        return str(endpoint)

    async def check(self) -> None:
        """Raises when a rank is dead, does not answer, or says that it is unfit."""
        fault = self.fault
        if fault is None:
            calls = _all(worker.fault.remote() for worker in self._workers)
            faults = await asyncio.wait_for(calls, FAULT_CALL_TIMEOUT_S)
            fault = next((each for each in faults if each is not None), None)
        if fault is not None:
            raise RuntimeError(f"worker unfit: {fault}")

    async def stop(self) -> None:
        """Hand over what is open, and end all ranks in order."""
        if self._watch is not None:
            self._watch.cancel()
        if self.fault is None:
            first, *others = self._workers
            await asyncio.wait_for(first.stop.remote(), STOP_TIMEOUT_S)
            await asyncio.wait_for(_all(each.stop.remote() for each in others), STOP_TIMEOUT_S)

    async def _transport(self) -> Literal["shared", "gloo", "nccl"]:
        asked = self._config.workers.transport
        if asked != "auto":
            return asked
        if self._on_gpus:
            return "nccl"
        nodes = await _all(worker.node.remote() for worker in self._workers)
        return "shared" if len(set(nodes)) == 1 else "gloo"

    async def _end_at_first_fault(self) -> None:
        watches = [
            asyncio.create_task(_until_fault(rank, worker))
            for rank, worker in enumerate(self._workers)
        ]
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in watches:
                watch.cancel()
        died, self.fault = next(iter(done)).result()
        if not died:
            self._kill(lowest=1)
            with contextlib.suppress(TimeoutError, ray.exceptions.RayActorError):
                await asyncio.wait_for(self._workers[0].drain.remote(), HAND_OVER_S)
        self._kill()

    def _kill(self, lowest: int = 0) -> None:
        """All from this rank on, whatever they do, and what they may have left behind."""
        for worker in self._workers[lowest:]:
            ray.kill(worker)
        if self._address is not None and Path(self._address).is_absolute():
            Path(self._address).unlink(missing_ok=True)


async def _until_fault(rank: int, worker: Any) -> tuple[bool, str]:
    """Whether the rank has died, and what is wrong with it."""
    fault = asyncio.ensure_future(worker.until_fault.remote())
    try:
        while True:
            await asyncio.wait_for(worker.progress.remote(), SILENCE_S)
            await asyncio.wait({fault}, timeout=PING_S)
            if fault.done():
                return False, f"rank {rank}: {fault.result()}"
    except TimeoutError:
        return False, f"rank {rank} is silent"
    except ray.exceptions.RayActorError:
        return True, f"rank {rank} has died"


async def _all(calls: Iterable[Any]) -> list[Any]:
    return await asyncio.gather(*calls)
