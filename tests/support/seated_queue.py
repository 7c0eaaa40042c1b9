"""A router whose recorder is real, before one replica with seats; time is simulated."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from chairlift.cluster.config import TelemetryConfig
from chairlift.cluster.guard_state import Readings
from chairlift.cluster.protocol import LoadReport, Request, SamplingParams
from chairlift.cluster.signals import SignalReader, SignalSettings
from chairlift.cluster.telemetry import Report
from chairlift.cluster.windows import Fold
from chairlift.router.metrics import Outcome, RouterMetrics
from chairlift.router.placement import ReplicaView
from chairlift.router.record import Record
from chairlift.router.recorder import Recorder, Reporter
from support.engines import replica_info
from support.reports import T0

TICK_S = 0.1
STEP_S = 0.02
TARGET_S = 1.0


@dataclass
class Job:
    record: Record
    takes_s: float
    queued_at: float

    @property
    def flight(self) -> Record:
        """It has the request."""
        return self.record


class SeatedQueue:
    """Requests come with exponential gaps and stay for exponential times, first come first served.

    Attributes:
        now: simulated seconds.
        rate: requests a second.
        frozen: the replica's reports say nothing new.
    """

    def __init__(self, rate: float, seats: int, mean_s: float, seed: int = 0) -> None:
        self.now = 0.0
        self.rate = rate
        self.frozen = False
        self._seats = seats
        self._mean_s = mean_s
        self._dice = random.Random(seed)
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._waiting: deque[Job] = deque()
        self._running = 0
        self._load = LoadReport()
        metrics = RouterMetrics("m", lambda: [])
        settings = TelemetryConfig(first_token_target_s=TARGET_S, per_token_target_s=10.0)
        self.recorder = Recorder(metrics, settings, lambda: T0 + self.now)
        self.reporter = Reporter(
            "one", "m", self.recorder, self, lambda: [self._view()], lambda: self.now, lambda: None
        )
        self._fold, self._known = Fold(), -1
        self._reader = SignalReader(SignalSettings(TARGET_S))
        self._at(0.0, self._arrive)

    def backlogged(self) -> dict[str, Job]:
        return {"a": self._waiting[0]} if self._waiting else {}

    def queued_of(self, tenant: str) -> int:
        return len(self._waiting)

    def run(self, seconds: float) -> None:
        """Go on for so long, and close the seconds on the way."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            tick = min(round(self.now / TICK_S + 1) * TICK_S, end)
            while self._agenda and self._agenda[0][0] <= tick:
                self.now, _, action = heapq.heappop(self._agenda)
                action()
            self.now = tick
            self.recorder.tick(self.backlogged(), self.now, TICK_S)

    def reports(self, seconds: int) -> Iterator[Report]:
        """One a second, each with all there is."""
        for _ in range(seconds):
            self.run(1.0)
            yield self.reporter.report(-1)

    def readings(self, seconds: int) -> list[Readings]:
        """What the Hub reads once a second."""
        found: list[Readings] = []
        for _ in range(seconds):
            self.run(1.0)
            self._known = self._fold.put(self.reporter.report(self._known), T0 + self.now)
            found.append(self._reader.read(self._fold, T0 + self.now))
        return found

    def _arrive(self) -> None:
        request = Request("r", (1,) * 10, SamplingParams(max_tokens=9), tenant="a")
        job = Job(
            self.recorder.start(request, self.now),
            self._dice.expovariate(1 / self._mean_s),
            self.now,
        )
        self._waiting.append(job)
        self._seat()
        self._at(self._dice.expovariate(self.rate), self._arrive)

    def _seat(self) -> None:
        while self._waiting and self._running < self._seats:
            job = self._waiting.popleft()
            self._running += 1
            job.record.sent(self.now, "r0")
            job.record.first_token(self.now, 0)
            self._at(job.takes_s, lambda job=job: self._end(job))

    def _end(self, job: Job) -> None:
        self._running -= 1
        job.record.end(Outcome.FINISHED, "stop", self.now, [1])
        self._seat()

    def _at(self, after_s: float, action: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._agenda, (self.now + after_s, self._order, action))

    def _view(self) -> ReplicaView:
        if not self.frozen:
            step = int(self.now / STEP_S)
            self._load = LoadReport(
                step=step,
                running=self._running,
                blocks_used=self._running,
                blocks_total=4 * self._seats,
                stamp=step,
                step_s=step * STEP_S,
                predicted_s=step * STEP_S,
            )
        info = replica_info(max_sequences=self._seats)
        return ReplicaView("r0", True, info, self._load, 0.1, open_sequences=self._running)
