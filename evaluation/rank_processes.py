"""The same work on every rank of a tensor-parallel group, whose ranks are processes here.

Owns the processes. The work is a function of the group and of what can be pickled; every rank does
all of it, in step with the others, and what rank 0 makes of it is the result.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any, TypeVar

from chairlift.workers.tensor_parallel import Alone, Group, Rendezvous, join, new_address

__all__ = ["on_ranks"]

T = TypeVar("T")

_JOIN_S = 120.0


def on_ranks(size: int, work: Callable[..., T], *arguments: Any) -> T:
    """What ``work(group, *arguments)`` gives on rank 0, which is in this process.

    Raises:
        RankFault: another rank is lost, or does something else.
        StartupError: there is no compiler, or no shared memory.
    """
    if size == 1:
        return work(Alone(), *arguments)
    address = new_address("shared")
    seats = [Rendezvous(rank, size, "shared", address, _JOIN_S) for rank in range(size)]
    processes = multiprocessing.get_context("spawn")
    others = [
        processes.Process(target=_take_part, args=(seat, work, arguments), daemon=True)
        for seat in seats[1:]
    ]
    for other in others:
        other.start()
    group: Group | None = None
    try:
        group = join(seats[0])
        result = work(group, *arguments)
        for other in others:
            other.join(_JOIN_S)
        return result
    finally:
        if group is not None:
            group.close()
        for other in others:
            other.kill()


def _take_part(seat: Rendezvous, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """What every other rank does: the same."""
    group = join(seat)
    try:
        work(group, *arguments)
    finally:
        group.close()
