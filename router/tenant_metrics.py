"""What is measured per tenant, and of the queue: the families of the Prometheus page about them.

Owns the count of endings per tenant. Service and queue are read from where they are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from chairlift.cluster.fairness import VirtualCounters
from chairlift.router.fair_queue import FairQueue
from chairlift.router.ticket import Ticket

__all__ = ["TenantMetrics"]


class TenantMetrics:
    """Of one router; bounded by the number of tenants and of reasons."""

    def __init__(
        self,
        labels: dict[str, str],
        queue: FairQueue[Ticket],
        counters: VirtualCounters,
    ) -> None:
        """Start at zero.

        Args:
            labels: of every sample, the router's own among them.
            queue: of the router.
            counters: of the router.
        """
        self._labels = labels
        self._queue = queue
        self._counters = counters
        self._told: dict[str, float] = {}
        self._ended: Counter[tuple[str, str, str]] = Counter()

    def end(self, tenant: str, outcome: str, reason: str) -> None:
        """A request of the tenant has ended."""
        self._ended[tenant, outcome, reason] += 1

    def families(self) -> Iterator[Metric]:
        names, values = list(self._labels), list(self._labels.values())
        ended = CounterMetricFamily(
            "chairlift_tenant_requests",
            "Requests that ended, by tenant, outcome and reason.",
            labels=[*names, "tenant", "outcome", "reason"],
        )
        for key, number in self._ended.items():
            ended.add_metric([*values, *key], number)
        service = CounterMetricFamily(
            "chairlift_tenant_service",
            "Service given by this router: uncached prompt tokens, and output tokens twice.",
            labels=[*names, "tenant"],
        )
        counter = GaugeMetricFamily(
            "chairlift_tenant_counter",
            "Virtual token counter: who has the least is served next.",
            labels=[*names, "tenant"],
        )
        queued = GaugeMetricFamily(
            "chairlift_tenant_queued",
            "Requests that wait in this router.",
            labels=[*names, "tenant"],
        )
        for tenant in self._counters.tenants():
            # What was charged can be given back, but a Prometheus counter never falls.
            told = max(self._told.get(tenant, 0.0), self._counters.own(tenant))
            self._told[tenant] = told
            service.add_metric([*values, tenant], told)
            counter.add_metric([*values, tenant], self._counters.value(tenant))
            queued.add_metric([*values, tenant], self._queue.queued_of(tenant))
        yield from (ended, service, counter, queued)
        for name, text, value in (
            ("chairlift_queue_requests", "Waiting for a replica.", len(self._queue)),
            ("chairlift_queue_tokens", "Prompt tokens of these.", self._queue.num_tokens),
        ):
            family = GaugeMetricFamily(name, text, labels=names)
            family.add_metric(values, value)
            yield family
