"""What one router's requests came to, second by second, and what it tells the Hub of them.

Owns the present second, the router's last hour (``cluster.history``) and its totals. What happens
to a request is noted by its ``Record``; this closes the second, from the router's clockwork, so
that no token has to read a clock. Without telemetry, records count in the router's metrics alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from chairlift.cluster.config_sections import TelemetryConfig
from chairlift.cluster.guard_state import GuardState
from chairlift.cluster.history import Windows
from chairlift.cluster.protocol import Request
from chairlift.cluster.telemetry import (
    OTHERS,
    Bucket,
    Failure,
    ReplicaState,
    Report,
    Series,
    Tally,
)
from chairlift.router.metrics import RouterMetrics
from chairlift.router.placement import ReplicaView
from chairlift.router.record import Notes, Present, Record, series_of
from chairlift.router.ticket import Ticket

__all__ = ["Recorder", "Reporter"]

MAX_REPLICAS = 256
"""Told apart."""


class Recorder:
    """One router's; belongs to its event loop.

    In the totals as many tenants are told apart as the settings say, those that came first, so that
    what was told of a tenant is never less than before; in the windows those that were served most.
    """

    def __init__(
        self,
        metrics: RouterMetrics,
        settings: TelemetryConfig,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Start at zero.

        Args:
            metrics: count each request too.
            settings: targets and bounds.
            wall: seconds since the epoch.
        """
        self.enabled = settings.enabled
        self.totals: Bucket = {}
        self.windows = Windows(settings.tenants)
        self.places = Windows(MAX_REPLICAS)
        """By replica."""
        self.open = 0
        """Requests that were open when the last second was closed, …"""
        self.open_s = 0.0
        """… what that came to over time until then, in request-seconds, …"""
        self.open_age_s = 0.0
        """… and the age of those that were open, all together."""
        self._metrics = metrics
        self._most = settings.tenants
        self._wall = wall
        self._weights: dict[str, float] = {}
        self._named: set[str] = set()
        self._open_s = 0.0
        self._present = Present(
            settings.first_token_target_s, settings.per_token_target_s, int(wall())
        )

    def start(self, request: Request, now: float) -> Record:
        """A request came; its record is to be told all the rest. ``now``: the router's clock."""
        if not self.enabled:
            return Record(request, now, self._metrics, None)
        self._weights[request.tenant] = request.weight
        return Record(request, now, self._metrics, Notes(request, now, self._present))

    def tick(self, backlogged: Mapping[str, Ticket], now: float, elapsed_s: float) -> None:
        """Close the second if it has passed; to be called often.

        Args:
            backlogged: tenants that wait, each with what has waited longest.
            now: the router's clock.
            elapsed_s: since the last call.
        """
        if not self.enabled:
            return
        for ticket in backlogged.values():
            tally = self._present.tally(series_of(ticket.flight.request))
            tally.backlogged_s += elapsed_s
        # Counted apart from the tallies, so that either can be held against the other.
        self._open_s += self._metrics.open * elapsed_s
        self._close(int(self._wall()), now)

    def weights(self, tenants: Collection[str]) -> dict[str, float]:
        """Of those that are known by name."""
        known = self._weights
        return {tenant: known[tenant] for tenant in tenants if tenant in known}

    def failures(self, after: int) -> tuple[Failure, ...]:
        """The newest ones of seconds that are closed, later than this one."""
        last = self.windows.last
        newest = [*self._present.failed, *self._present.rejected]
        newest.sort(key=lambda each: each.at)
        return tuple(each for each in newest if after < each.at <= last)

    @property
    def reasons(self) -> dict[str, int]:
        """How many failed or were turned away, by the error's code."""
        return dict(self._present.reasons)

    def _close(self, second: int, now: float) -> None:
        """``second`` is the present one; a wall clock that is set back stands still."""
        present = self._present
        if second <= present.second:
            return
        bucket, present.bucket = present.bucket, {}
        for series, tally in bucket.items():
            self._total(series).merge(tally)
        self.open, self.open_s = self._metrics.open, self._open_s
        self.open_age_s = present.open_age_s(now)
        self.windows.add(present.second, bucket)
        self.places.add(present.second, present.places)
        present.places = {}
        present.second = second

    def _total(self, series: Series) -> Tally:
        if series.tenant not in self._named:
            if len(self._named) < self._most:
                self._named.add(series.tenant)
            else:
                series = series._replace(tenant=OTHERS)
        return self.totals.setdefault(series, Tally())


class Waiting(Protocol):
    """What has to be known of the queue."""

    def backlogged(self) -> Mapping[str, Ticket]: ...

    def queued_of(self, tenant: str, /) -> int: ...


@dataclass(frozen=True, slots=True)
class Reporter:
    """Makes a router's reports.

    Attributes:
        replicas: what is known of each.
        clock: that of the router.
        guard: the Guard's state that the router obeys; None for none.
    """

    router_id: str
    model_name: str
    recorder: Recorder
    queue: Waiting
    replicas: Callable[[], Sequence[ReplicaView]]
    clock: Callable[[], float]
    guard: Callable[[], GuardState | None]

    @property
    def enabled(self) -> bool:
        """Whether there is anything to report."""
        return self.recorder.enabled

    def report(self, acknowledged: int) -> Report:
        """All that the Hub lacks that has acknowledged this second; -1: that has nothing."""
        now, recorder, guard = self.clock(), self.recorder, self.guard()
        history = recorder.windows.since(acknowledged)
        waiting = self.queue.backlogged()
        tenants = recorder.windows.tenants() | {each.tenant for each in recorder.totals}
        return Report(
            router_id=self.router_id,
            model=self.model_name,
            seconds=history.seconds,
            tens=history.tens,
            minutes=history.minutes,
            totals=recorder.totals,
            weights=recorder.weights(tenants | waiting.keys()),
            queued={tenant: self.queue.queued_of(tenant) for tenant in waiting},
            oldest_s={tenant: now - each.queued_at for tenant, each in waiting.items()},
            replicas={view.replica_id: _state(view) for view in self.replicas()},
            after=history.after,
            open=recorder.open,
            open_s=recorder.open_s,
            open_age_s=recorder.open_age_s,
            places=recorder.places.since(acknowledged),
            failures=recorder.failures(acknowledged),
            reasons=recorder.reasons,
            guard_version=0 if guard is None else guard.version,
            guard=guard if acknowledged == -1 else None,
        )


def _state(view: ReplicaView) -> ReplicaState:
    seats = None if view.info is None else view.info.max_sequences
    return ReplicaState(view.load, view.load_age_s, view.ready, seats, view.open_sequences)
