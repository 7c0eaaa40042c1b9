"""The cluster's figures as a Prometheus page.

Owns the names: all begin with ``chairlift_cluster_``. Quantiles come from the Hub's sketches of all
routers together, so they are the cluster's own and no means of means. What is not known is left
out, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

__all__ = ["cluster_page"]

PREFIX = "chairlift_cluster_"

_PARTS = (
    ("", "all", ""),
    ("tenant_", "tenants", "tenant"),
    ("class_", "classes", "class"),
    ("length_", "lengths", "length"),
)
"""Prefix of the name, field of a window, and label."""

_RATES = (
    ("requests_per_second", "requests_per_s", "Requests that started."),
    ("met_per_second", "met_per_s", "Requests that met both latency targets."),
    ("generation_tokens_per_second", "tokens_per_s", "Output tokens that came."),
    ("prompt_tokens_per_second", "prompt_tokens_per_s", "Of requests whose first token came."),
    ("goodput_ratio", "goodput", "Requests that met both targets, of all that ended."),
    ("on_time_ratio", "on_time", "Output tokens that came by their deadline."),
    ("cached_ratio", "cached_share", "Prompt tokens that the prefix cache had."),
)
_LATENCIES = (
    ("time_to_first_token_seconds", "ttft_s", "From arrival to the first token."),
    ("inter_token_latency_seconds", "inter_token_s", "Between tokens, each token counted."),
    ("e2e_request_latency_seconds", "duration_s", "From arrival to the end, if it finished."),
    ("request_queue_time_seconds", "queue_s", "From arrival until sent to a replica."),
)
_QUANTILES = (("p50", "0.5"), ("p95", "0.95"), ("p99", "0.99"))
_FAIRNESS = (
    ("fairness_jain", "jain", "Jain's index over weighted service of backlogged tenants."),
    ("fairness_gap", "gap", "Largest difference of their weighted service."),
    ("fairness_gap_bound", "gap_bound", "What that difference may come to."),
    ("slowdown_ratio", "slowdown_ratio", "The worst p99 slowdown of a tenant over the median."),
)
_TENANT_FAIRNESS = (
    ("tenant_weighted_service", "weighted_service", "Service over weight, of backlogged tenants."),
    ("tenant_slowdown_p99", "slowdown_p99", "Latency over what it would be alone."),
    ("tenant_weight", "weights", "As configured."),
    ("tenant_service_ratio", "service_share", "Its part of the service of all."),
    ("tenant_refused_ratio", "refused", "Requests rejected, of those that ended."),
)
_REPLICA = (
    ("replica_live", "live", "1 if requests can be sent to it."),
    ("replica_draining", "draining", "1 if it takes no requests any more."),
    ("replica_report_age_seconds", "age_s", "Age of its newest load report."),
    ("replica_requests_running", "running", "Sequences with a seat."),
    ("replica_requests_waiting", "waiting", "Sequences without."),
    ("replica_seats", "seats", "Sequences that can run at once."),
    ("replica_kv_cache_usage_ratio", "kv_use", "Used blocks; 1 is all."),
    ("replica_prefix_hit_ratio", "prefix_hit_share", "Prompt tokens found in the prefix cache."),
)
_ENDINGS = ("finished", "cancelled", "rejected", "failed")


class _Page(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def cluster_page(figures: Mapping[str, Any]) -> tuple[bytes, str]:
    """The page and its content type, from ``cluster.figures.Figures`` as a dictionary."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(list(_families(figures))))
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _families(figures: Mapping[str, Any]) -> Iterator[Metric]:
    windows = figures["windows"]
    yield from _totals(figures["totals"])
    for prefix, field, label in _PARTS:
        yield from _requests(prefix, label, windows, field)
    for name, field, text in _FAIRNESS:
        samples = [((window,), each["fairness"][field]) for window, each in windows.items()]
        yield _gauge(name, text, ("window",), samples)
    for name, field, text in _TENANT_FAIRNESS:
        by_tenant = [
            ((window, tenant), value)
            for window, each in windows.items()
            for tenant, value in each["fairness"][field].items()
        ]
        yield _gauge(name, text, ("window", "tenant"), by_tenant)
    costs = [((window,), each["cost_per_met"]) for window, each in windows.items()]
    yield _gauge("cost_per_met_request", "Price of live replicas.", ("window",), costs)
    yield from _present(figures)


def _totals(totals: Mapping[str, Any]) -> Iterator[Metric]:
    counts = {
        "requests_started": ("Requests submitted.", totals["started"]),
        **{f"requests_{end}": (f"Requests that ended as {end}.", totals[end]) for end in _ENDINGS},
        "requests_met": ("Finished ones that met both latency targets.", totals["met"]),
        "prompt_tokens": ("Of requests whose first token came.", totals["prompt_tokens"]),
        "generation_tokens": ("Output tokens that came.", totals["output_tokens"]),
    }
    for name, (text, value) in counts.items():
        family = CounterMetricFamily(PREFIX + name, text)
        family.add_metric([], value)
        yield family
    for name, text in (
        ("open", "Requests that have not ended."),
        ("lost", "Had not ended when their router was last heard of."),
        ("balanced", "1 if all that started are accounted for."),
    ):
        yield _gauge(f"requests_{name}", text, (), [((), totals[name])])


def _requests(
    prefix: str, label: str, windows: Mapping[str, Any], field: str
) -> Iterator[GaugeMetricFamily]:
    parts = [
        ((window, name) if label else (window,), part)
        for window, each in windows.items()
        for name, part in (each[field].items() if label else [("", each[field])])
    ]
    labels = ("window", label) if label else ("window",)
    for name, key, text in _RATES:
        yield _gauge(prefix + name, text, labels, [(values, part[key]) for values, part in parts])
    for name, key, text in _LATENCIES:
        samples = [
            ((*values, quantile), part[key][percentile])
            for values, part in parts
            for percentile, quantile in _QUANTILES
        ]
        yield _gauge(prefix + name, text, (*labels, "quantile"), samples)


def _present(figures: Mapping[str, Any]) -> Iterator[Metric]:
    """How things stand now."""
    replicas, queues = figures["replicas"], figures["queues"]
    yield _gauge("routers", "Routers that are there.", (), [((), figures["routers"])])
    for name, field, text in _REPLICA:
        samples = [((replica,), each[field]) for replica, each in replicas.items()]
        yield _gauge(name, text, ("replica",), samples)
    preemptions = CounterMetricFamily(
        f"{PREFIX}replica_preemptions", "Sequences paused.", labels=["replica"]
    )
    for replica, each in replicas.items():
        if each["preemptions"] is not None:
            preemptions.add_metric([replica], each["preemptions"])
    yield preemptions
    for name, field, text in (
        ("tenant_queued", "queued", "Requests that wait in routers."),
        ("tenant_oldest_waiting_seconds", "oldest_s", "Age of the oldest of them."),
    ):
        by_tenant = [((tenant,), queue[field]) for tenant, queue in queues.items()]
        yield _gauge(name, text, ("tenant",), by_tenant)
    oldest = figures["oldest_waiting_s"]
    yield _gauge("oldest_waiting_seconds", "Of all that wait.", (), [((), oldest)])


def _gauge(
    name: str,
    text: str,
    labels: tuple[str, ...],
    samples: Iterable[tuple[tuple[str, ...], float | None]],
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, text, labels=list(labels))
    for values, value in samples:
        if value is not None:
            family.add_metric(list(values), value)
    return family
