"""How many of a tenant's requests may move to another replica, so that moving does not snowball.

Owns the counts of the last minute: requests, and moves. It decides on no move.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["RetryBudget"]

WINDOW_S = 60


@dataclass(slots=True)
class _Second:
    at: int
    requests: int = 0
    moves: int = 0


class RetryBudget:
    """Moves of a tenant within a minute: a share of its requests, and a number in any case."""

    def __init__(self, share: float, floor: int) -> None:
        self._share = share
        self._floor = floor
        self._tenants: dict[str, deque[_Second]] = {}

    def started(self, tenant: str, now: float) -> None:
        """A request of it was let in."""
        self._second(tenant, now).requests += 1

    def allow_move(self, tenant: str, now: float) -> bool:
        """Whether one more may move; it is counted if so."""
        second = self._second(tenant, now)
        seconds = self._tenants[tenant]
        requests, moves = sum(s.requests for s in seconds), sum(s.moves for s in seconds)
        if moves + 1 > max(self._floor, self._share * requests):
            return False
        second.moves += 1
        return True

    def _second(self, tenant: str, now: float) -> _Second:
        """The count of the present second; those that are a minute old are dropped."""
        seconds = self._tenants.setdefault(tenant, deque())
        at = int(now)
        if not seconds or seconds[-1].at < at:
            seconds.append(_Second(at))
        while seconds[0].at <= at - WINDOW_S:
            seconds.popleft()
        return seconds[-1]
