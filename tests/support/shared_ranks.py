"""Ranks in threads of one process, over real shared memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from chairlift.workers.tensor_parallel import Group, Rendezvous, join, new_address

T = TypeVar("T")


def by_ranks(size: int, run: Callable[[Group], T]) -> list[T]:
    """What ``run`` gives on each rank; a rank that fails ends the others too."""
    address = new_address("shared")

    def one(rank: int) -> T:
        group = join(Rendezvous(rank, size, "shared", address, timeout_s=30.0))
        try:
            return run(group)
        finally:
            group.close()

    with ThreadPoolExecutor(size) as threads:
        return [each.result() for each in [threads.submit(one, rank) for rank in range(size)]]
