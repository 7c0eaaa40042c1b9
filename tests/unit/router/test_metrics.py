import pytest
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from chairlift.cluster.protocol import LoadReport
from chairlift.router.metrics import Histogram, Outcome, RequestEnd, RouterMetrics
from chairlift.router.placement import ReplicaView


def samples(metrics: RouterMetrics) -> dict[tuple, float]:
    """By name and the values of all labels but the model's and the convention's."""
    page, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    return {
        (
            sample.name,
            *(
                value
                for label, value in sample.labels.items()
                if label != "model_name" and not label.startswith("gen_ai")
            ),
        ): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def end(outcome: Outcome, label: str, **facts) -> RequestEnd:
    values = {"duration_s": 2.0, "first_token_s": 0.5, "output_tokens": 4, "prompt_tokens": 9}
    return RequestEnd("anonymous", outcome, label, **(values | facts))


def test_every_outcome_is_counted_and_the_rest_is_open():
    metrics = RouterMetrics("m", lambda: [])
    metrics.started = 6
    metrics.end(end(Outcome.FINISHED, "stop"))
    metrics.end(end(Outcome.FINISHED, "length"))
    metrics.end(end(Outcome.CANCELLED, "abort"))
    metrics.end(end(Outcome.REJECTED, "queue_full"))
    metrics.end(end(Outcome.FAILED, "replica_lost"))
    page = samples(metrics)
    counts = {"started": 6, "finished": 2, "cancelled": 1, "rejected": 1, "failed": 1}
    for name, number in counts.items():
        assert page[f"chairlift_requests_{name}_total",] == number
    assert page["chairlift_requests_open",] == metrics.open == 1
    for reason in ("stop", "length", "abort"):
        assert page["vllm:request_success_total", reason] == 1
    assert page["vllm:admission_rejections_total", "queue_full"] == 1
    assert page["chairlift_requests_failures_total", "replica_lost"] == 1


def test_latencies_of_the_convention_are_those_of_successes_only():
    metrics = RouterMetrics("m", lambda: [])
    metrics.end(end(Outcome.FINISHED, "stop"))
    metrics.end(end(Outcome.FAILED, "replica_lost", duration_s=80.0))
    metrics.end(end(Outcome.CANCELLED, "abort", duration_s=80.0))
    page = samples(metrics)
    assert page["gen_ai_server_request_duration_seconds_count",] == 1
    assert page["gen_ai_server_request_duration_seconds_sum",] == 2.0
    assert page["gen_ai_server_time_to_first_token_seconds_sum",] == 0.5
    # (2.0 - 0.5) s over the 3 tokens after the first.
    assert page["gen_ai_server_time_per_output_token_seconds_sum",] == 0.5
    assert page["vllm:e2e_request_latency_seconds_count",] == 1
    tokens = {"input": 9, "output": 4}
    for kind, number in tokens.items():
        (found,) = (
            sample
            for family in metrics.families()
            for sample in family.samples
            if sample.name == "gen_ai_client_token_usage_sum"
            and sample.labels["gen_ai_token_type"] == kind
        )
        assert found.value == number


def test_time_between_tokens_is_weighted_by_token():
    metrics = RouterMetrics("m", lambda: [])
    metrics.next_tokens(1, 0.02)
    metrics.next_tokens(9, 0.9)
    page = samples(metrics)
    assert page["vllm:inter_token_latency_seconds_count",] == 10
    assert page["vllm:inter_token_latency_seconds_bucket", "0.025"] == 1
    assert page["vllm:inter_token_latency_seconds_bucket", "0.1"] == 10
    assert page["vllm:inter_token_latency_seconds_sum",] == pytest.approx(0.92)


def test_first_tokens_and_prompts_are_counted_together():
    metrics = RouterMetrics("m", lambda: [])
    metrics.first_token(100, 0.3)
    metrics.generated_tokens += 7
    page = samples(metrics)
    assert page["vllm:prompt_tokens_total",] == 100
    assert page["vllm:generation_tokens_total",] == 7
    assert page["vllm:time_to_first_token_seconds_bucket", "0.25"] == 0
    assert page["vllm:time_to_first_token_seconds_bucket", "0.5"] == 1


def test_loads_are_shown_by_replica_and_unknown_ones_are_left_out():
    load = LoadReport(
        running=3,
        waiting=2,
        blocks_used=25,
        blocks_total=100,
        preemptions=4,
        cache_queries=50,
        cache_hits=16,
    )
    views = [ReplicaView("a", True, None, load, 0.5), ReplicaView("b", True)]
    page = samples(RouterMetrics("m", lambda: views))
    assert page["vllm:num_requests_running", "a"] == 3
    assert page["vllm:num_requests_waiting", "a"] == 2
    assert page["vllm:kv_cache_usage_perc", "a"] == 0.25
    assert page["vllm:num_preemptions_total", "a"] == 4
    assert page["vllm:prefix_cache_queries_total", "a"] == 50
    assert page["vllm:prefix_cache_hits_total", "a"] == 16
    assert page["chairlift_load_report_age_seconds", "a"] == 0.5
    assert not [key for key in page if key[-1] == "b"]


def test_an_observation_on_an_edge_belongs_to_the_bucket_below():
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    family = histogram.family("h", "", {})
    buckets = {s.labels["le"]: s.value for s in family.samples if s.name == "h_bucket"}
    assert buckets == {"1.0": 1, "2.0": 3, "+Inf": 4}


def test_routers_do_not_share_a_registry():
    before = set(REGISTRY._names_to_collectors)
    first, second = RouterMetrics("m", lambda: []), RouterMetrics("m", lambda: [])
    first.started = 5
    assert samples(second)["chairlift_requests_started_total",] == 0
    assert set(REGISTRY._names_to_collectors) == before
