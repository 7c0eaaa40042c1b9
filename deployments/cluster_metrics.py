"""The cluster's figures as a Prometheus page.

Owns the names: all begin with ``chairlift_cluster_``. Quantiles come from the Hub's sketches of all
routers together, so they are the cluster's own and no means of means. What is not known is left
out, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chairlift.cluster.guard_state import Mode

__all__ = ["PREFIX", "cluster_families", "cluster_page"]

PREFIX = "chairlift_cluster_"

_PARTS = (
    ("", "all", ""),
    ("tenant_", "tenants", "tenant"),
    ("class_", "classes", "class"),
    ("length_", "lengths", "length"),
    ("model_", "models", "model"),
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
    ("replica_recomputed_ratio", "recomputed_share", "Computed tokens that preemption had taken."),
    ("replica_steps_left", "steps_left", "Until its KV cache is full if nobody ends before."),
)
_PLACE = (
    ("replica_requests_sent", "sent", "Sent to it in the window."),
    ("replica_requests_finished", "finished", "That ended well there."),
    ("replica_requests_failed", "failed", "That were lost there, also if they went on elsewhere."),
)
_GUARD = (
    ("guard_rung", "rung_number", "Rung of the ladder; 0 is normal, 10 is stop."),
    ("guard_admit_ratio", "admit", "Share that is let in from the rung that cuts admission on."),
    ("guard_frozen", "frozen", "1 if telemetry contradicts itself."),
)
_SIGNALS = (
    ("guard_signal_value", "value", ("signal",), "What it says now."),
    ("guard_signal_threshold", "threshold", ("signal", "owner"), "Beyond which it asks for more."),
    ("guard_signal_active", "active", ("signal",), "1 if it was beyond it long enough."),
)
_CALLS = (
    ("guard_calls_sent", "sent", "Calls to people that arrived."),
    ("guard_calls_failed", "failed", "That did not."),
    ("guard_calls_dropped", "dropped", "That were too many."),
)
_SCALING = (
    ("autoscaling_desired_replicas", "desired", "Replicas that there are to be."),
    ("autoscaling_ready_replicas", "ready", "That take requests."),
    ("autoscaling_wanted_replicas", "wanted", "Desired, but for bounds and ceilings."),
    ("autoscaling_min_replicas", "min", "Bound."),
    ("autoscaling_max_replicas", "max", "Bound."),
    ("autoscaling_replica_hours_today", "replica_hours_today", "Since midnight (UTC)."),
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
    registry.register(_Page(list(cluster_families(figures))))
    return generate_latest(registry), CONTENT_TYPE_LATEST


def cluster_families(figures: Mapping[str, Any]) -> Iterator[Metric]:
    """What the page is made of."""
    windows = figures["windows"]
    yield from _totals(figures["totals"])
    reasons = [((reason,), number) for reason, number in figures["failure_reasons"].items()]
    yield _counter("failures", "Failed or turned away, by reason.", ("reason",), reasons)
    for prefix, field, label in _PARTS:
        yield from _requests(prefix, label, windows, field)
    yield from _places(windows)
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
    if figures.get("guard") is not None:
        yield from _guard(figures["guard"])
    if figures.get("autoscaling") is not None:
        yield from _autoscaling(figures["autoscaling"])


def _totals(totals: Mapping[str, Any]) -> Iterator[Metric]:
    counts = {
        "requests_started": ("Requests submitted.", totals["started"]),
        **{f"requests_{end}": (f"Requests that ended as {end}.", totals[end]) for end in _ENDINGS},
        "requests_met": ("Finished ones that met both latency targets.", totals["met"]),
        "prompt_tokens": ("Of requests whose first token came.", totals["prompt_tokens"]),
        "generation_tokens": ("Output tokens that came.", totals["output_tokens"]),
    }
    for name, (text, value) in counts.items():
        yield _counter(name, text, (), [((), value)])
    for name, text in (
        ("open", "Requests that have not ended."),
        ("lost", "Had not ended when their router was last heard of."),
        ("balanced", "1 if all that started are accounted for."),
    ):
        yield _gauge(f"requests_{name}", text, (), [((), totals[name])])


def _requests(prefix: str, label: str, windows: Mapping[str, Any], field: str) -> Iterator[Metric]:
    parts = [
        ((window, name) if label else (window,), part)
        for window, each in windows.items()
        for name, part in (each[field].items() if label else [("", each[field])])
    ]
    labels = ("window", label) if label else ("window",)
    for name, key, text in _RATES:
        yield _gauge(prefix + name, text, labels, [(values, part[key]) for values, part in parts])
    for latency in _LATENCIES:
        yield _latency(prefix, latency, labels, parts)


def _places(windows: Mapping[str, Any]) -> Iterator[Metric]:
    """What became of requests at each replica."""
    places = [
        ((window, replica), place)
        for window, each in windows.items()
        for replica, place in each["replicas"].items()
    ]
    for name, key, text in _PLACE:
        samples = [(values, place[key]) for values, place in places]
        yield _gauge(name, text, ("window", "replica"), samples)
    yield _latency("replica_", _LATENCIES[0], ("window", "replica"), places)


def _latency(
    prefix: str,
    latency: tuple[str, str, str],
    labels: tuple[str, ...],
    parts: Iterable[tuple[tuple[str, ...], Mapping[str, Any]]],
) -> Metric:
    """The quantiles of each part."""
    name, key, text = latency
    samples = [
        ((*values, quantile), part[key][percentile])
        for values, part in parts
        for percentile, quantile in _QUANTILES
    ]
    return _gauge(prefix + name, text, (*labels, "quantile"), samples)


def _present(figures: Mapping[str, Any]) -> Iterator[Metric]:
    """How things stand now."""
    replicas, queues = figures["replicas"], figures["queues"]
    yield _gauge("routers", "Routers that are there.", (), [((), figures["routers"])])
    for name, field, text in _REPLICA:
        samples = [((replica,), each[field]) for replica, each in replicas.items()]
        yield _gauge(name, text, ("replica",), samples)
    preemptions = [((replica,), each["preemptions"]) for replica, each in replicas.items()]
    yield _counter("replica_preemptions", "Sequences paused.", ("replica",), preemptions)
    for name, field, text in (
        ("tenant_queued", "queued", "Requests that wait in routers."),
        ("tenant_oldest_waiting_seconds", "oldest_s", "Age of the oldest of them."),
    ):
        by_tenant = [((tenant,), queue[field]) for tenant, queue in queues.items()]
        yield _gauge(name, text, ("tenant",), by_tenant)
    oldest = figures["oldest_waiting_s"]
    yield _gauge("oldest_waiting_seconds", "Of all that wait.", (), [((), oldest)])


def _guard(guard: Mapping[str, Any]) -> Iterator[Metric]:
    """How it stands, as ``guard_view`` describes it."""
    modes = [((mode.value,), float(guard["mode"] == mode)) for mode in Mode]
    yield _gauge("guard_mode", "1 for the one that it is in.", ("mode",), modes)
    if guard["mode"] == Mode.OFF:
        return
    for name, field, text in _GUARD:
        yield _gauge(name, text, (), [((), guard[field])])
    for name, field, text in (
        ("guard_held", "held_by", "1 if a person holds the rung."),
        ("guard_waiting", "waiting_for", "1 if the next rung needs a person's word."),
    ):
        yield _gauge(name, text, (), [((), float(guard[field] is not None))])
    for name, field, labels, text in _SIGNALS:
        samples = [
            ((signal, each["owner"])[: len(labels)], each[field])
            for signal, each in guard["signals"].items()
        ]
        yield _gauge(name, text, labels, samples)
    moves = [
        ((each["kind"], each["signal"], each["rung"]), each["count"])
        for each in guard["moves_total"]
    ]
    yield _counter("guard_moves", "By the rung they led to.", ("kind", "signal", "rung"), moves)
    for name, field, text in _CALLS:
        yield _counter(name, text, (), [((), guard["calls"][field])])


def _autoscaling(scaling: Mapping[str, Any]) -> Iterator[Metric]:
    """How the number of replicas stands, as ``scaling_keeper`` describes it."""
    for name, field, text in _SCALING:
        yield _gauge(name, text, (), [((), scaling[field])])
    decisions = [
        ((each["cause"], each["direction"]), each["count"]) for each in scaling["decisions"]
    ]
    labels = ("cause", "direction")
    yield _counter("autoscaling_decisions", "That changed the number.", labels, decisions)
    readings = [((name,), value) for name, value in scaling["reading"].items()]
    yield _gauge("autoscaling_reading", "What it went by.", ("name",), readings)


_Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float | None]]


def _gauge(name: str, text: str, labels: tuple[str, ...], samples: _Samples) -> Metric:
    return _filled(GaugeMetricFamily(PREFIX + name, text, labels=list(labels)), samples)


def _counter(name: str, text: str, labels: tuple[str, ...], samples: _Samples) -> Metric:
    return _filled(CounterMetricFamily(PREFIX + name, text, labels=list(labels)), samples)


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, samples: _Samples
) -> GaugeMetricFamily | CounterMetricFamily:
    """What is not known is left out."""
    for values, value in samples:
        if value is not None:
            family.add_metric(list(values), value)
    return family
