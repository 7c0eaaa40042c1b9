"""Replicas of two ranks in this process, which reach each other as on one CPU node."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.vocabulary import Vocabulary
from chairlift.workers.replica import Replica
from chairlift.workers.tensor_parallel import Rendezvous, new_address

__all__ = ["TwoRanks", "needs_shared_memory", "two_rank_replica"]

needs_shared_memory = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))) or not Path("/dev/shm").is_dir(),
    reason="there is no C++ compiler, or no shared memory",
)


@dataclass
class TwoRanks:
    """A replica that serves; ``ranks`` in order."""

    replica_id: str
    endpoint: str
    ranks: list[Replica]
    address: str

    def lose(self, rank: int) -> None:
        """As if its process had ended."""
        group = self.ranks[rank]._group
        assert group is not None
        group.close()


def _left_over(address: str) -> list[Path]:
    return [path for path in [Path(address)] if path.exists()]


@asynccontextmanager
async def two_rank_replica(
    config: ServiceConfig,
    replica_id: str = "r",
    read_vocabulary: Callable[[], Vocabulary] | None = None,
) -> AsyncIterator[TwoRanks]:
    address = new_address("shared")
    ranks = [
        Replica(
            config,
            replica_id,
            lambda progress: None,
            Rendezvous(rank, 2, "shared", address, timeout_s=60.0),
            read_vocabulary,
        )
        for rank in range(2)
    ]
    await asyncio.gather(*(asyncio.to_thread(rank.build) for rank in ranks))
    endpoint, nothing = [await rank.start("127.0.0.1") for rank in ranks]
    assert endpoint is not None and nothing is None
    try:
        yield TwoRanks(replica_id, endpoint, ranks, address)
    finally:
        for rank in ranks:
            await rank.stop()
    assert all(rank.fault() is not None for rank in ranks), "a loop goes on"
    assert not _left_over(address)
