"""One request's trace, read back from a collector, over the processes of a real service."""

import json
import os
import signal
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.collector import Received, collector
from support.service import Service, running_service, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SENT_DEADLINE_S = 30.0


def ask(service: Service, traceparent: str, max_tokens: int) -> dict[str, str]:
    """One answer; returns the response's headers."""
    body = {"prompt": "All that glitters", "max_tokens": max_tokens, "ignore_eos": True}
    request = urllib.request.Request(
        f"{service.url}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "traceparent": traceparent},
    )
    with urllib.request.urlopen(request, timeout=60.0) as answer:
        answer.read()
        return {name.lower(): value for name, value in answer.headers.items()}


@pytest.mark.slow
def test_a_request_is_one_trace_from_the_client_to_the_engine() -> None:
    with collector() as collected:
        config = {
            "engine": {"simulated_step_ms": 2},
            "tracing": {"endpoint": collected.endpoint, "sample": 0.0, "service_name": "ours"},
        }
        with running_service(config=config) as service:
            unsampled = ask(service, f"00-{'1' * 32}-{CLIENT}-00", 5)
            headers = ask(service, f"00-{TRACE}-{CLIENT}-01", 20)
            wait_until(
                lambda: len(collected.spans(TRACE)) >= 5, SENT_DEADLINE_S, "the trace has come"
            )
        spans = collected.spans(TRACE)
        assert collected.spans("1" * 32) == []
    assert unsampled["traceparent"].startswith(f"00-{'1' * 32}-")
    assert unsampled["traceparent"].endswith("-00")

    assert Counter(span.name for span in spans) == Counter(
        ["text_completion", "admission", "queue", "placement", "engine"]
    )
    named: dict[str, Received] = {span.name: span for span in spans}
    root, engine = named["text_completion"], named["engine"]
    assert headers["traceparent"] == f"00-{TRACE}-{root.id}-01"
    assert root.parent == CLIENT
    assert {span.parent for span in spans if span is not root} == {root.id}
    assert {span.service for span in spans} == {"ours"}
    assert {span.name for span in spans if span.instance == engine.instance} == {"engine"}

    for span in spans:
        assert root.begin <= span.begin <= span.end <= root.end
    assert named["admission"].end <= named["queue"].end <= named["placement"].begin
    assert named["placement"].begin <= engine.begin <= root.events["first token"]

    assert root.attributes["gen_ai.operation.name"] == "text_completion"
    assert root.attributes["gen_ai.usage.output_tokens"] == 20
    assert root.attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert engine.attributes["chairlift.output_tokens"] == 20
    assert engine.attributes["chairlift.steps"] >= 20
    assert engine.attributes["chairlift.finish_reason"] == "length"
    assert engine.attributes["chairlift.replica"] == engine.instance
    assert named["placement"].attributes["chairlift.replica"] == engine.instance


@pytest.mark.chaos
def test_what_outlives_its_worker_has_a_visit_at_the_next_one() -> None:
    traces = [f"{number:032x}" for number in range(1, 7)]
    with collector() as collected:
        config = {
            "engine": {"simulated_step_ms": 20},
            "workers": {"replicas": 2},
            "tracing": {"endpoint": collected.endpoint},
        }
        with running_service(config=config) as service, ThreadPoolExecutor(len(traces)) as pool:
            answers = [
                pool.submit(ask, service, f"00-{trace}-{CLIENT}-01", 150) for trace in traces
            ]
            wait_until(
                lambda: service.total("vllm:num_requests_running") == len(traces),
                SENT_DEADLINE_S,
                "all run",
            )
            os.kill(service.worker_pids()[0], signal.SIGKILL)
            for answer in answers:
                answer.result()
            wait_until(
                lambda: all(len(collected.spans(trace)) >= 5 for trace in traces),
                SENT_DEADLINE_S,
                "the traces have come",
            )
        stories = [collected.spans(trace) for trace in traces]
    moved = 0
    for spans in stories:
        (root,) = (span for span in spans if span.parent == CLIENT)
        (engine,) = (span for span in spans if span.name == "engine")  # the dead one's is lost
        placements = [span for span in spans if span.name == "placement"]
        placements.sort(key=lambda span: span.begin)
        assert root.attributes["gen_ai.usage.output_tokens"] == 150
        assert placements[-1].attributes["chairlift.replica"] == engine.instance
        told = engine.attributes["chairlift.brought_tokens"]
        assert told + engine.attributes["chairlift.output_tokens"] == 150
        if "move" in root.events:
            moved += 1
            assert told > 0
            assert placements[0].attributes["chairlift.replica"] != engine.instance
            assert root.events["replica lost"] <= root.events["move"] <= engine.begin
        assert len(placements) == 1 + ("move" in root.events)
    assert 0 < moved < len(traces)
