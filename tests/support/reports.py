"""Tallies and reports of routers that were made up."""

from collections import Counter
from collections.abc import Mapping

from chairlift.cluster.history import Windows
from chairlift.cluster.telemetry import Bucket, Failure, ReplicaState, Report, Series, Tally

T0 = 1_700_000_040
"""A second of the wall clock in which a minute begins."""


def series(tenant: str = "a", priority: str = "normal", length: str = "≤128") -> Series:
    return Series(tenant, priority, length)


def served(service: float = 1.0, started: int = 1, **counts: float) -> Tally:
    tally = Tally(started=started, service=service)
    for name, value in counts.items():
        setattr(tally, name, value)
    return tally


def tenants(**services: float) -> Bucket:
    """One request of each tenant, with that service."""
    return {series(tenant): served(service) for tenant, service in services.items()}


def started(bucket: Bucket) -> int:
    return sum(tally.started for tally in bucket.values())


class Router:
    """What one router counts, as its reports tell it.

    Attributes:
        extra_open: requests that it believes to be open, and its totals do not know of.
    """

    def __init__(self, router_id: str, most: int = 32, model: str = "m") -> None:
        self.router_id = router_id
        self.model = model
        self.places = Windows()
        self.failures: list[Failure] = []
        self.extra_open = 0
        self.open_s = 0.0
        self.open_age_s: float | None = None
        self.windows = Windows(most)
        self.totals: Bucket = {}
        self.weights: dict[str, float] = {}
        self.queued: dict[str, int] = {}
        self.oldest_s: dict[str, float] = {}
        self.replicas: dict[str, ReplicaState] = {}

    def count(
        self,
        second: int,
        bucket: Mapping[Series, Tally],
        places: Mapping[str, Tally] | None = None,
    ) -> None:
        """``places``: by replica."""
        for each, tally in bucket.items():
            self.totals.setdefault(each, Tally()).merge(tally)
            self.weights.setdefault(each.tenant, 1.0)
        self.windows.add(second, dict(bucket))
        by_replica = {series(name, "", ""): tally for name, tally in (places or {}).items()}
        self.places.add(second, by_replica)

    def report(self, acknowledged: int = -1) -> Report:
        history = self.windows.since(acknowledged)
        totals: Bucket = {}
        for each, tally in self.totals.items():
            totals[each] = Tally()
            totals[each].merge(tally)
        return Report(
            router_id=self.router_id,
            model=self.model,
            seconds=history.seconds,
            tens=history.tens,
            minutes=history.minutes,
            totals=totals,
            weights=dict(self.weights),
            queued=dict(self.queued),
            oldest_s=dict(self.oldest_s),
            replicas=dict(self.replicas),
            after=history.after,
            open=self.extra_open + sum(t.started - t.ended for t in totals.values()),
            open_s=self.open_s,
            open_age_s=self.open_age_s,
            places=self.places.since(acknowledged),
            failures=tuple(
                each for each in self.failures if acknowledged < each.at <= self.windows.last
            ),
            reasons=dict(Counter(each.reason for each in self.failures)),
        )
