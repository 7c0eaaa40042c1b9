"""Which sequences should have started long ago.

Owns how long sequences usually take from a replica's acceptance to their first token, and those
that are waiting for it. Pure: the router decides what to do with the late ones.
"""

from __future__ import annotations

from collections import deque

from chairlift.router.ticket import Leg

__all__ = ["Hedging"]

REMEMBERED = 512
ENOUGH = 50
"""Starts seen before anything is called late."""

QUANTILE = 0.99
SHORTEST_S = 0.1


class Hedging:
    """Watches legs until they start; bounded by what the replicas have open.

    Attributes:
        on: late ones are told; without it they are only watched.
    """

    def __init__(self) -> None:
        self.on = True
        self._took: deque[float] = deque(maxlen=REMEMBERED)
        self._waiting: dict[Leg, None] = {}

    def watch(self, leg: Leg) -> None:
        """It was accepted; only what starts from the begin is watched."""
        if not leg.ticket.under_way:
            self._waiting[leg] = None

    def started(self, leg: Leg, at: float) -> None:
        """Its first token has come."""
        if leg in self._waiting and leg.accepted_at is not None:
            del self._waiting[leg]
            self._took.append(at - leg.accepted_at)

    def late(self, now: float) -> list[Leg]:
        """Those past the p99 of the usual time; each is told once."""
        for leg in [leg for leg in self._waiting if not leg.running]:
            del self._waiting[leg]
        if not self.on or len(self._took) < ENOUGH:
            return []
        usual = max(SHORTEST_S, sorted(self._took)[int(QUANTILE * len(self._took))])
        late = [
            leg
            for leg in self._waiting
            if leg.accepted_at is not None and now - leg.accepted_at > usual
        ]
        for leg in late:
            del self._waiting[leg]
        return late
