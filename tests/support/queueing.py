"""Things that wait, and a server with seats that takes them from a fair queue."""

from collections import Counter
from dataclasses import dataclass

from chairlift.cluster.fairness import VirtualCounters, service
from chairlift.cluster.protocol import Priority
from chairlift.router.fair_queue import FairQueue


@dataclass(eq=False)
class Waiting:
    """The least that a ``FairQueue`` holds; ``num_output`` is the server's business."""

    tenant: str = "t"
    num_tokens: int = 10
    num_output: int = 10
    priority: Priority = Priority.STANDARD
    weight: float = 1.0
    n: int = 1
    queued_at: float = 0.0
    expires_at: float = float("inf")


class SeatedServer:
    """Gives each seated item a token a step, and free seats to who is next."""

    def __init__(self, counters: VirtualCounters, queue: FairQueue[Waiting], seats: int) -> None:
        self.counters = counters
        self.queue = queue
        self.served: Counter[str] = Counter()
        self._seats = seats
        self._running: list[tuple[Waiting, int]] = []

    def step(self, now: float) -> list[Waiting]:
        """Those that were given a seat."""
        for item, _ in self._running:
            self.counters.charge(item.tenant, output_tokens=1)
            self.served[item.tenant] += service(0, 1)
        self._running = [(item, left - 1) for item, left in self._running if left > 1]
        started = []
        while len(self._running) < self._seats and (item := self.queue.next(now)) is not None:
            self.queue.remove(item, served=True)
            self.counters.chosen(item.tenant, item.priority)
            self.counters.charge(item.tenant, input_tokens=item.num_tokens)
            self.served[item.tenant] += service(item.num_tokens, 0)
            self._running.append((item, item.num_output))
            started.append(item)
        return started
