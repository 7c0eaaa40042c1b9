"""The spans of one process, and their way to a collector.

Owns what a trace is made with. The OpenTelemetry SDK is loaded only where an endpoint is
configured. Spans are made when what they tell of is over, from times that were noted on the way, so
a trace costs nothing while its tokens flow. A thread of the SDK's sends them in batches; its queue
is bounded, what does not fit is dropped, and a collector that does not answer harms nobody.

It knows neither requests nor what their spans are called (``router.journey``, ``workers.visits``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from chairlift.cluster import otlp
from chairlift.cluster.config_sections import TracingConfig
from chairlift.cluster.traceparent import TraceParent

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["AttributeValue", "Attributes", "OpenSpan", "Tracer", "start_tracing"]

logger = logging.getLogger(__name__)

AttributeValue: TypeAlias = str | int | float | bool | Sequence[str]
Attributes: TypeAlias = Mapping[str, AttributeValue]
"""What a span or an event says of itself."""

TRACES_PATH = "/v1/traces"
MAX_QUEUED = 4096
"""Spans that wait to be sent; further ones push the oldest out."""
MAX_BATCH = 512
SEND_EVERY_MS = 1000
CLOSE_TIMEOUT_S = 2.0


class OpenSpan:
    """A span that has begun; its ``traceparent`` lets others stand under it, in any process.

    Times are of the tracer's clock.
    """

    def __init__(self, tracer: Tracer, name: str, parent: TraceParent | None, at: float) -> None:
        """Begin at ``at``; with a parent it is sampled as that is, else by the configured share."""
        from opentelemetry import trace

        self._tracer = tracer
        self._wall_ns = time.time_ns() - int(tracer.clock() * 1e9)
        self._span = tracer.sdk.start_span(
            name,
            context=_context(parent),
            # Whose parent is elsewhere, or who has none, serves somebody's call.
            kind=trace.SpanKind.SERVER,
            start_time=self._ns(at),
        )
        context = self._span.get_span_context()
        self.traceparent = TraceParent(
            context.trace_id, context.span_id, context.trace_flags.sampled
        )

    def child(self, name: str, begin: float, end: float, attributes: Attributes) -> None:
        """A part of it, which is over."""
        from opentelemetry import trace

        span = self._tracer.sdk.start_span(
            name,
            context=trace.set_span_in_context(self._span),
            attributes=dict(attributes),
            start_time=self._ns(begin),
        )
        span.end(self._ns(end))

    def event(self, name: str, at: float, attributes: Attributes) -> None:
        self._span.add_event(name, dict(attributes), self._ns(at))

    def end(self, at: float, attributes: Attributes, error: str | None = None) -> None:
        """``error``: of which kind, if it failed."""
        from opentelemetry import trace

        self._span.set_attributes(dict(attributes))
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(trace.StatusCode.ERROR)
        self._span.end(self._ns(at))

    def _ns(self, at: float) -> int:
        """Nanoseconds of the wall clock, as it was when the span was begun."""
        return self._wall_ns + int(at * 1e9)


class Tracer:
    """Begins spans.

    Attributes:
        clock: seconds, by which all times are told.
        sdk: OpenTelemetry's own tracer.
    """

    def __init__(
        self,
        provider: TracerProvider,
        exporter: SpanExporter,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.sdk = provider.get_tracer("chairlift")
        self._provider = provider
        self._exporter = exporter

    def begin(self, name: str, parent: TraceParent | None, at: float) -> OpenSpan:
        return OpenSpan(self, name, parent, at)

    def close(self) -> None:
        """Send what is left, for a moment at most; blocks."""
        # The SDK would wait as long as a collector that does not answer lets it.
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)
        if closing.is_alive():  # it tries again and again, until it is told to stop
            self._exporter.shutdown()


def start_tracing(
    config: TracingConfig, instance: str, exporter: SpanExporter | None = None
) -> Tracer | None:
    """The tracer of this process; None where no endpoint is configured.

    Args:
        config: where spans go, and of which traces.
        instance: of the service, as ``service.instance.id``: a router's or a replica's id.
        exporter: takes the spans; by default one that sends them to the endpoint.
    """
    if config.endpoint is None:
        return None
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    exporter = exporter or _exporter(config.endpoint)
    # No thread of the SDK's may keep a process from its end.
    provider = TracerProvider(
        ParentBased(TraceIdRatioBased(config.sample)),
        otlp.resource(config.service_name, instance),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(
        BatchSpanProcessor(
            exporter,
            max_queue_size=MAX_QUEUED,
            max_export_batch_size=MAX_BATCH,
            schedule_delay_millis=SEND_EVERY_MS,
        )
    )
    return Tracer(provider, exporter)


def _exporter(endpoint: str) -> SpanExporter:
    """Sends over OTLP/HTTP; says once, and not again, that the collector cannot be reached."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    address = otlp.address(endpoint, TRACES_PATH)

    class Exporter(SpanExporter):
        """The library's exporter, with one warning for all that it fails to send."""

        def __init__(self) -> None:
            self._exporter = OTLPSpanExporter(address, timeout=otlp.SEND_TIMEOUT_S)
            self._warned = False
            self._closed = False

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            if self._closed:
                return SpanExportResult.FAILURE
            result = self._exporter.export(spans)
            if result is not SpanExportResult.SUCCESS and not self._warned:
                self._warned = True
                logger.warning("traces cannot be sent to %s; they are dropped", address)
            return result

        def shutdown(self) -> None:
            if self._closed:
                return
            self._closed = True
            self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the library has no type for it

    return Exporter()


def _context(parent: TraceParent | None) -> Context:
    from opentelemetry import trace
    from opentelemetry.context import Context

    if parent is None:
        return Context()
    flags: Any = trace.TraceFlags(
        trace.TraceFlags.SAMPLED if parent.sampled else trace.TraceFlags.DEFAULT
    )
    span = trace.SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
    return trace.set_span_in_context(trace.NonRecordingSpan(span), Context())
