"""Who of the ranks of several nodes is there, and who is still alive.

Owns the store that rank 0 keeps for all: how the ranks find each other in it, and their beats.
Knows nothing of what the ranks exchange otherwise.

Silence is counted in beats of one's own, so a machine that was suspended has not lost the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from chairlift.workers.rank_faults import RankLost, RanksDiffer

__all__ = ["BEAT_S", "SILENT_BEATS", "RankBeats", "meet"]

BEAT_S = 0.2
SILENT_BEATS = 5

_LEFT = "left"


def meet(address: str, rank: int, size: int, *, timeout_s: float) -> tuple[Any, Any]:
    """Two connections to the store of rank 0, once all have come; one is for the beats alone.

    Raises:
        RankLost: a rank has not come in time.
        RanksDiffer: the rank is taken, or the ranks do not agree on their number.
    """
    stores: Any = dist  # whose stubs do not export them
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + timeout_s

    def left() -> timedelta:
        return timedelta(seconds=max(0.01, deadline - time.monotonic()))

    def connect(is_master: bool) -> Any:
        return stores.TCPStore(
            host, int(port), is_master=is_master, timeout=left(), wait_for_workers=False
        )

    absent = 0
    try:
        store, beats = connect(rank == 0), connect(False)
        if store.compare_set("size", "", str(size)) != str(size).encode():
            raise RanksDiffer("the ranks do not agree on their number")
        if store.add(f"taken/{rank}", 1) > 1:
            raise RanksDiffer(f"rank {rank} is taken")
        store.set(_key(rank), "here")
        for absent in range(size):
            store.wait([_key(absent)], left())
    except RuntimeError as error:
        raise RankLost(f"rank {absent} has not come to {address}: {error}") from error
    return store, beats


class RankBeats:
    """A thread that beats for one rank and hears the others."""

    count: int
    """How often it has; it stops when rank 0, which keeps the store, stands still."""

    lost: int | None
    """The first rank that was silent or has left."""

    def __init__(self, store: Any, rank: int, size: int, on_loss: Callable[[], None]) -> None:
        self.count, self.lost = 0, None
        self._store, self._on_loss = store, on_loss
        self._own, self._keys = _key(rank), [_key(other) for other in range(size)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rank-beats", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Stop, and tell the others."""
        self._stop.set()
        self._thread.join(BEAT_S)  # if the process ends next, they know already

    def _run(self) -> None:
        silent, heard = [0] * len(self._keys), [b""] * len(self._keys)
        try:
            while self.lost is None and not self._stop.wait(BEAT_S):
                self._store.set(self._own, str(self.count))
                found = self._store.multi_get(self._keys)
                self.count += 1
                for rank, beat in enumerate(found):
                    silent[rank] = silent[rank] + 1 if beat == heard[rank] else 0
                    if beat == _LEFT.encode() or silent[rank] >= SILENT_BEATS:
                        self.lost = rank
                heard = found
            self._store.set(self._own, _LEFT)
        except RuntimeError:
            self.lost = 0
        if self.lost is not None:
            self._on_loss()


def _key(rank: int) -> str:
    return f"beat/{rank}"
