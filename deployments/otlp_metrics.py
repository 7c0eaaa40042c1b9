"""One process's metrics on their way to a collector.

Owns the way from what a Prometheus page is made of to OTLP, so that both say the same: counters,
gauges and histograms with their edges keep their names, and what the conventions for generative AI
name has their name. A collector that does not answer harms nobody: what it missed it learns with
the next counts, for all that is sent is since the process started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn

from prometheus_client.core import Metric

from chairlift.cluster import otlp
from chairlift.cluster.config_sections import TracingConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import HistogramDataPoint, MetricsData
    from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
    from opentelemetry.sdk.resources import Resource

__all__ = ["OtlpMetrics", "otlp_metrics"]

logger = logging.getLogger(__name__)

METRICS_PATH = "/v1/metrics"
SEND_EVERY_S = 10.0

_CONVENTION = {
    "gen_ai_server_request_duration_seconds": ("gen_ai.server.request.duration", "s"),
    "gen_ai_server_time_to_first_token_seconds": ("gen_ai.server.time_to_first_token", "s"),
    "gen_ai_server_time_per_output_token_seconds": ("gen_ai.server.time_per_output_token", "s"),
    "gen_ai_client_token_usage": ("gen_ai.client.token.usage", "{token}"),
}
_CONVENTION_LABELS = "gen_ai_"


class OtlpMetrics:
    """Sends what the families are, again and again, from its ``start`` to its ``stop``."""

    def __init__(
        self,
        endpoint: str,
        service_name: str,
        instance: str,
        families: Callable[[], Iterable[Metric]],
        *,
        period_s: float = SEND_EVERY_S,
    ) -> None:
        """Load the SDK.

        Args:
            endpoint: of the collector, without a path.
            service_name: as the collector is to call the service.
            instance: of the service: a router's id, or ``hub``.
            families: what is to be sent; asked on the event loop.
            period_s: between two attempts.
        """
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._address = otlp.address(endpoint, METRICS_PATH)
        self._exporter = OTLPMetricExporter(self._address, timeout=otlp.SEND_TIMEOUT_S)
        self._resource = otlp.resource(service_name, instance)
        self._families = families
        self._period_s = period_s
        self._began_ns = time.time_ns()
        self._warned = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, on the loop that runs."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="send metrics")

    async def stop(self) -> None:
        """Send once more, for the last counts, and end."""
        if self._task is None:
            return
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._task = None
        await self._send()
        self._exporter.shutdown()

    async def _run(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._period_s)
            await self._send()

    async def _send(self) -> None:
        """One attempt; says once, and not again, that it failed."""
        try:
            sent = await asyncio.to_thread(self._export, list(self._families()))
        except Exception:
            logger.exception("metrics could not be made")
            return
        if not sent and not self._warned:
            self._warned = True
            logger.warning("metrics cannot be sent to %s", self._address)

    def _export(self, families: Sequence[Metric]) -> bool:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        data = _metrics_data(families, self._resource, self._began_ns, time.time_ns())
        return self._exporter.export(data) is MetricExportResult.SUCCESS


def otlp_metrics(
    config: TracingConfig, instance: str, families: Callable[[], Iterable[Metric]]
) -> OtlpMetrics | None:
    """As the configuration says; None where there is no collector."""
    if config.endpoint is None:
        return None
    return OtlpMetrics(config.endpoint, config.service_name, instance, families)


def _metrics_data(
    families: Iterable[Metric], resource: Resource, began_ns: int, now_ns: int
) -> MetricsData:
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    made = (_metric(family, began_ns, now_ns) for family in families if family.samples)
    scope = ScopeMetrics(InstrumentationScope("chairlift"), list(made), "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Metric, began_ns: int, now_ns: int) -> OtlpMetric:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        NumberDataPoint,
        Sum,
    )
    from opentelemetry.sdk.metrics.export import Metric as OtlpMetric

    named = family.name, "s" if family.name.endswith("_seconds") else ""
    name, unit = _CONVENTION.get(family.name, named)
    data: Gauge | Histogram | Sum
    if family.type == "histogram":
        data = Histogram(_histograms(family, began_ns, now_ns), AggregationTemporality.CUMULATIVE)
    else:
        points = [
            NumberDataPoint(_attributes(sample.labels), began_ns, now_ns, float(sample.value))
            for sample in family.samples
        ]
        counts = family.type == "counter"
        data = Sum(points, AggregationTemporality.CUMULATIVE, True) if counts else Gauge(points)
    return OtlpMetric(name, family.documentation, unit, data)


def _histograms(family: Metric, began_ns: int, now_ns: int) -> list[HistogramDataPoint]:
    """One for each set of labels; Prometheus counts what is at most an edge, OTLP what is between.

    Neither knows the least and the greatest value.
    """
    from opentelemetry.sdk.metrics.export import HistogramDataPoint

    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        key = tuple(labels.items())
        if sample.name.endswith("_bucket"):
            buckets.setdefault(key, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[key] = sample.value
    unknown: Any = None
    points = []
    for key, below in buckets.items():
        counts = [0, *(int(number) for _, number in below)]
        points.append(
            HistogramDataPoint(
                attributes=_attributes(dict(key)),
                start_time_unix_nano=began_ns,
                time_unix_nano=now_ns,
                count=counts[-1],
                sum=sums[key],
                bucket_counts=[after - before for before, after in pairwise(counts)],
                explicit_bounds=[edge for edge, _ in below if math.isfinite(edge)],
                min=unknown,
                max=unknown,
            )
        )
    return points


def _attributes(labels: dict[str, str]) -> dict[str, str]:
    return {
        f"gen_ai.{name.removeprefix(_CONVENTION_LABELS).replace('_', '.')}"
        if name.startswith(_CONVENTION_LABELS)
        else name: value
        for name, value in labels.items()
    }
