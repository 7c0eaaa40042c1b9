import asyncio
import logging
import socket
from itertools import accumulate

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric

from chairlift.deployments.cluster_metrics import cluster_families
from chairlift.deployments.otlp_metrics import OtlpMetrics
from chairlift.router.metrics import (
    DURATION_EDGES,
    FIRST_TOKEN_EDGES,
    PER_TOKEN_EDGES,
    Outcome,
    RequestEnd,
    RouterMetrics,
)
from support.collector import Collector, collector
from support.figures import cluster_figures


def send(families: list[Metric], collected: Collector, instance: str = "r1") -> None:
    async def main() -> None:
        metrics = OtlpMetrics(collected.endpoint, "ours", instance, lambda: families)
        metrics.start()
        await metrics.stop()

    asyncio.run(main())


def router_metrics() -> RouterMetrics:
    metrics = RouterMetrics("m", lambda: [])
    metrics.started = 3
    for duration_s, first_token_s in ((2.0, 0.5), (0.3, 0.001)):
        metrics.first_token(100, first_token_s)
        end = RequestEnd("a", Outcome.FINISHED, "stop", duration_s, first_token_s, 4, 100)
        metrics.end(end)
    return metrics


def test_a_routers_histograms_have_the_conventions_names_edges_and_attributes() -> None:
    metrics = router_metrics()
    with collector() as collected:
        send(list(metrics.families()), collected)
        model = {"gen_ai_request_model": "m", "gen_ai_operation_name": "text_completion"}
        (first,) = collected.points("gen_ai.server.time_to_first_token", **model)
        (each,) = collected.points("gen_ai.server.time_per_output_token", **model)
        (whole,) = collected.points("gen_ai.server.request.duration", **model)
        (into,) = collected.points("gen_ai.client.token.usage", gen_ai_token_type="input")
        (out,) = collected.points("gen_ai.client.token.usage", gen_ai_token_type="output")
        (started,) = collected.points("chairlift_requests_started", model_name="m")
        (open_,) = collected.points("chairlift_requests_open", model_name="m")
    assert {first.unit, each.unit, whole.unit} == {"s"}
    assert (first.edges, each.edges, whole.edges) == (
        FIRST_TOKEN_EDGES,
        PER_TOKEN_EDGES,
        pytest.approx(DURATION_EDGES),
    )
    assert (first.value, whole.value) == pytest.approx((0.501, 2.3))
    assert (
        list(accumulate(first.counts)) == [1] * 9 + [2] * 8
    )  # an edge belongs to the bucket below it
    assert sum(whole.counts) == sum(each.counts) == 2
    assert (into.value, out.value, into.unit) == (200, 8, "{token}")
    assert (started.kind, started.value) == ("counter", 3)
    assert (open_.kind, open_.value) == ("gauge", 1)


def test_the_hubs_figures_arrive_as_its_page_has_them() -> None:
    families = list(cluster_families(cluster_figures()))
    with collector() as collected:
        send(families, collected, "chairlift-hub")
        for family in families:
            assert len(collected.points(family.name)) == min(1, len(family.samples))
            for sample in family.samples:
                (point,) = collected.points(family.name, **sample.labels)
                assert point.value == sample.value
                assert point.kind == family.type


def test_it_sends_again_and_again() -> None:
    async def main() -> None:
        asked = 0

        def families() -> list[Metric]:
            nonlocal asked
            asked += 1
            return [GaugeMetricFamily("asked", "So often.", value=asked)]

        with collector() as collected:
            metrics = OtlpMetrics(collected.endpoint, "ours", "r1", families, period_s=0.01)
            metrics.start()
            while asked < 3:
                await asyncio.sleep(0.01)
            await metrics.stop()
            (point,) = collected.points("asked")
            assert point.value == asked >= 4

    asyncio.run(main())


def test_a_collector_that_is_not_there_is_told_of_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chairlift.cluster.otlp.SEND_TIMEOUT_S", 0.05)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"

        async def main() -> None:
            asked = 0

            def families() -> list[Metric]:
                nonlocal asked
                asked += 1
                return [GaugeMetricFamily("asked", "So often.", value=asked)]

            metrics = OtlpMetrics(endpoint, "ours", "r1", families, period_s=0.01)
            metrics.start()
            while asked < 3:
                await asyncio.sleep(0.01)
            await metrics.stop()

        with caplog.at_level(logging.WARNING):
            asyncio.run(main())
    assert [record.getMessage() for record in caplog.records] == [
        f"metrics cannot be sent to {endpoint}/v1/metrics"
    ]
