import logging
import subprocess
import sys
import threading

import pytest

from chairlift.cluster.config import TracingConfig
from chairlift.cluster.traceparent import TraceParent
from chairlift.cluster.tracing import start_tracing
from support.collector import collector
from support.service import free_port, wait_until
from support.traces import MemoryTracer

SAMPLED, NOT_SAMPLED = TraceParent(7, 9, sampled=True), TraceParent(7, 9, sampled=False)


def spans_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("OtelBatchSpan")}


def test_without_an_endpoint_nothing_of_the_library_is_loaded() -> None:
    code = (
        "import sys\n"
        "import chairlift.deployments.http, chairlift.router.router, chairlift.workers.server\n"
        "from chairlift.cluster.config import ServiceConfig\n"
        "from chairlift.cluster.tracing import start_tracing\n"
        "assert start_tracing(ServiceConfig().tracing, 'here') is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_span_stands_under_its_parent_with_the_times_it_was_given() -> None:
    tracer = MemoryTracer(clock=lambda: 50.0)
    span = tracer.begin("whole", SAMPLED, 10.0)
    span.child("part", 11.0, 12.5, {"of": "it"})
    span.event("moment", 13.0, {})
    span.end(20.0, {"much": 1}, error="broken")
    part, whole = tracer.spans
    assert whole.parent.span_id == SAMPLED.span_id
    assert whole.context.trace_id == part.context.trace_id == SAMPLED.trace_id
    assert part.parent.span_id == whole.context.span_id == span.traceparent.span_id
    assert whole.end_time - whole.start_time == 10_000_000_000
    assert part.start_time - whole.start_time == 1_000_000_000
    assert part.end_time - part.start_time == 1_500_000_000
    assert whole.events[0].timestamp - whole.start_time == 3_000_000_000
    assert dict(whole.attributes) == {"much": 1, "error.type": "broken"}
    assert not whole.status.is_ok


@pytest.mark.parametrize("sample", [0.0, 1.0])
def test_the_client_decides_whether_its_trace_is_recorded(sample: float) -> None:
    tracer = MemoryTracer(sample)
    for parent in (SAMPLED, NOT_SAMPLED, None):
        span = tracer.begin("whole", parent, 0.0)
        assert span.traceparent.sampled is (parent.sampled if parent else sample == 1.0)
        span.end(1.0, {})
    assert len(tracer.spans) == 1 + int(sample)


def test_spans_reach_a_collector() -> None:
    with collector() as collected:
        config = TracingConfig(endpoint=f"{collected.endpoint}/", service_name="ours")
        tracer = start_tracing(config, "here")
        assert tracer is not None
        tracer.begin("whole", SAMPLED, tracer.clock()).end(tracer.clock(), {})
        tracer.close()
        (span,) = collected.spans(f"{SAMPLED.trace_id:032x}")
    assert (span.name, span.service, span.instance) == ("whole", "ours", "here")


def test_a_collector_that_is_not_there_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    config = TracingConfig(endpoint=f"http://127.0.0.1:{free_port()}")
    before = spans_threads()
    tracer = start_tracing(config, "here")
    assert tracer is not None and spans_threads() != before
    with caplog.at_level(logging.WARNING):
        tracer.begin("whole", None, 0.0).end(1.0, {})
        wait_until(lambda: bool(caplog.records), 30.0, "the warning")
        for _ in range(1000):
            tracer.begin("another", None, 0.0).end(1.0, {})
        tracer.close()
    assert [record.name for record in caplog.records] == ["chairlift.cluster.tracing"]
    # None goes on trying: it draws from `random`, which Hypothesis has to have for itself.
    wait_until(lambda: not spans_threads() - before, 10.0, "the end of the SDK's threads")
