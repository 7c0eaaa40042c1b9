"""Who sat in which seat of a replica, and how much of it was used, over time.

Owns the sums and the numbering of seats; is told what there is, and reads no clock. Engines know
how many seats are taken, not which; here a newcomer gets the lowest that is free.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence

from chairlift.evaluation.study_run import Ride, Use

__all__ = ["Meter", "use_of"]


class Meter:
    """One replica.

    Attributes:
        rides: those that have ended.
        seat_s, kv_s, budget_s: seconds times the share that was in use.
        steps: forward passes.
    """

    def __init__(self, seats: int, first_seat: int = 0) -> None:
        """Everything is free; its seats are numbered from ``first_seat``."""
        self.rides: list[Ride] = []
        self.seat_s = self.kv_s = self.budget_s = 0.0
        self.steps = 0
        self._seats = seats
        self._free = list(range(first_seat, first_seat + seats))
        self._next = first_seat + seats
        self._riders: dict[int, tuple[int, float]] = {}
        self._at_s = 0.0
        self._kv = 0.0

    def look(self, now: float, riders: Collection[int], kv: float) -> None:
        """From now on these requests have seats, and this share of the KV cache is in use."""
        elapsed = now - self._at_s
        self.seat_s += elapsed * len(self._riders) / self._seats
        self.kv_s += elapsed * self._kv
        self._at_s, self._kv = now, kv
        for number in self._riders.keys() - set(riders):
            seat, begin_s = self._riders.pop(number)
            heapq.heappush(self._free, seat)
            self.rides.append(Ride(number, seat, begin_s, now))
        for number in riders:
            if number not in self._riders:
                self._riders[number] = self._seat(), now

    def stepped(self, budget: float, seconds: float) -> None:
        """A step used this share of its token budget."""
        self.steps += 1
        self.budget_s += budget * seconds

    def _seat(self) -> int:
        """There may be more riders than seats, for a while after some were taken away."""
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1


def use_of(
    meters: Sequence[Meter],
    seconds: float,
    *,
    preemptions: int,
    recomputed: int,
    energy_j: float | None = None,
    others: float | None = None,
) -> Use:
    """All replicas together, over a run of ``seconds``."""
    whole = seconds * len(meters)
    return Use(
        steps=sum(each.steps for each in meters),
        seats=sum(each.seat_s for each in meters) / whole,
        kv=sum(each.kv_s for each in meters) / whole,
        budget=sum(each.budget_s for each in meters) / whole,
        preemptions=preemptions,
        recomputed=recomputed,
        energy_j=energy_j,
        others=others,
    )
