"""An OTLP collector for tests: takes traces and metrics, gives them back as plain values."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Received:
    """One span; ids in hexadecimal, times in nanoseconds, ``parent`` "" for none."""

    name: str
    service: str
    instance: str
    trace: str
    id: str
    parent: str
    begin: int
    end: int
    attributes: dict[str, Any]
    events: dict[str, int]


@dataclass(frozen=True)
class Point:
    """The newest of one metric and one set of attributes.

    ``kind``: ``counter``, ``gauge`` or ``histogram``; of the latter ``value`` is the sum, and
    ``counts`` and ``edges`` its buckets.
    """

    kind: str
    unit: str
    value: float
    counts: tuple[int, ...] = ()
    edges: tuple[float, ...] = ()


class Collector:
    """All spans that came, in order of arrival, and the newest point of each metric."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self._spans: list[Received] = []
        self._points: dict[tuple[str, str, str, frozenset[tuple[str, Any]]], Point] = {}
        self._lock = threading.Lock()

    def take(self, body: bytes) -> None:
        with self._lock:
            for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                resource = _values(group.resource.attributes)
                for scope in group.scope_spans:
                    self._spans += [_received(span, resource) for span in scope.spans]

    def take_metrics(self, body: bytes) -> None:
        with self._lock:
            for group in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                resource = _values(group.resource.attributes)
                source = resource["service.name"], resource["service.instance.id"]
                for scope in group.scope_metrics:
                    for metric in scope.metrics:
                        for attributes, point in _points(metric):
                            key = (*source, metric.name, frozenset(attributes.items()))
                            self._points[key] = point

    def points(self, name: str, **attributes: str) -> list[Point]:
        """Of the metric, from all who sent it, with these attributes at least; ``_`` for ``.``."""
        return list(self.by_instance(name, **attributes).values())

    def by_instance(self, name: str, **attributes: str) -> dict[str, Point]:
        """The same, by ``service.instance.id``; one that sent several has the last."""
        with self._lock:
            return {
                instance: point
                for (_, instance, metric, labels), point in self._points.items()
                if metric == name
                and attributes.items()
                <= {label.replace(".", "_"): value for label, value in labels}.items()
            }

    def spans(self, trace: str) -> list[Received]:
        with self._lock:
            return [span for span in self._spans if span.trace == trace]


@contextmanager
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            takers = {"/v1/traces": collected.take, "/v1/metrics": collected.take_metrics}
            status = 404
            if self.path in takers:
                takers[self.path](body)
                status = 200
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(status)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collected = Collector(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collected
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _received(span: Any, resource: dict[str, Any]) -> Received:
    return Received(
        span.name,
        resource["service.name"],
        resource["service.instance.id"],
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        {event.name: event.time_unix_nano for event in span.events},
    )


def _points(metric: Any) -> Iterator[tuple[dict[str, Any], Point]]:
    kind = metric.WhichOneof("data")
    for point in getattr(metric, kind).data_points:
        attributes = _values(point.attributes)
        if kind == "histogram":
            buckets = tuple(point.bucket_counts), tuple(point.explicit_bounds)
            assert point.count == sum(point.bucket_counts)
            yield attributes, Point(kind, metric.unit, point.sum, *buckets)
        else:
            value = getattr(point, point.WhichOneof("value"))
            counts = kind == "sum" and metric.sum.is_monotonic
            yield attributes, Point("counter" if counts else kind, metric.unit, value)


def _values(attributes: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
