"""A tracer whose spans stay in memory."""

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from chairlift.cluster.tracing import Tracer


class MemoryTracer(Tracer):
    """Keeps every span that has ended."""

    def __init__(self, sample: float = 1.0, **settings) -> None:
        provider = TracerProvider(ParentBased(TraceIdRatioBased(sample)), shutdown_on_exit=False)
        self._memory = InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        super().__init__(provider, self._memory, **settings)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._memory.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]
