import asyncio
import base64
import hashlib
import re
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from chairlift.cluster.tenants import Tenant, Tenants
from chairlift.deployments.cluster_metrics import cluster_page
from support.asgi_client import Reply, call
from support.figures import SCRIPT, cluster_figures, guard_figures
from support.figures_server import FakeHub
from support.http_app import http_app

MODEL = "SmolLM2-135M-Instruct"
PAGES = ("/dashboard", "/dashboard/figures", "/metrics/cluster")


def get(path: str, figures: dict[str, Any] | None = None, **changes: Any) -> Reply:
    app = http_app(figures=FakeHub(figures).ask, **changes)
    return asyncio.run(call(app, "GET", path))


def samples(page: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def test_figures_are_the_hubs_and_what_is_not_known_is_null() -> None:
    reply = get("/dashboard/figures", cluster_figures())
    assert (reply.status, reply.headers["cache-control"]) == (200, "no-store")
    answer = reply.json()
    assert answer["windows"]["1m"]["all"]["ttft_s"] == {"p50": 0.085, "p95": 0.24, "p99": 0.713}
    assert answer["replicas"]["replica-3"]["running"] is None
    assert SCRIPT in answer["queues"]


@pytest.mark.parametrize("path", ["/dashboard/figures", "/metrics/cluster"])
def test_without_the_hub_there_are_no_figures_and_serving_goes_on(path: str) -> None:
    reply = get(path)
    assert (reply.status, reply.error["code"]) == (503, "no_figures")
    assert "serving goes on" in reply.error["message"]
    assert get("/health").status == 200
    assert get("/dashboard").status == 200


def test_a_router_without_a_hub_says_so() -> None:
    assert asyncio.run(call(http_app(), "GET", "/dashboard/figures")).status == 503


def test_the_page_may_run_its_own_script_only_and_names_no_other_address() -> None:
    reply = get("/dashboard")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    policy = reply.headers["content-security-policy"]
    (script,) = re.findall(rb"<script>(.*?)</script>", reply.body, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert set(re.findall(rb"https?://[^\"' ]+", reply.body)) == {b"http://www.w3.org/2000/svg"}
    assert b"innerHTML" not in script


def test_the_pages_need_no_key_as_metrics_needs_none() -> None:
    tenants = Tenants({"some-hash": Tenant("acme")}, None)
    for path in (*PAGES, "/metrics"):
        assert get(path, cluster_figures(), tenants=tenants).status == 200


def test_prometheus_reads_the_clusters_page() -> None:
    found = samples(get("/metrics/cluster", cluster_figures()).body)

    def value(name: str, **labels: str) -> float:
        return found[f"chairlift_cluster_{name}", frozenset(labels.items())]

    assert value("requests_started_total") == 98765
    endings = ("finished_total", "cancelled_total", "rejected_total", "failed_total")
    parts = [value(f"requests_{end}") for end in (*endings, "open", "lost")]
    assert sum(parts) == value("requests_started_total")
    quantile = {"window": "1m", "quantile": "0.99"}
    assert value("time_to_first_token_seconds", **quantile) == 0.713
    assert value("tenant_time_to_first_token_seconds", tenant="acme", **quantile) == 0.713
    assert value("fairness_jain", window="10s") == 0.9984
    assert value("replica_live", replica="replica-3") == 0
    assert value("replica_preemptions_total", replica="replica-1") == 4
    assert value("tenant_weight", window="1m", tenant="acme") == 2
    assert value("tenant_queued", tenant=SCRIPT) == 2
    assert value("replica_recomputed_ratio", replica="replica-1") == 0.012
    assert value("replica_steps_left", replica="replica-1") == 310
    assert value("replica_requests_sent", window="1m", replica="replica-2") == 340
    at_replica = {"replica": "replica-2", **quantile}
    assert value("replica_time_to_first_token_seconds", **at_replica) == 0.55
    assert value("model_generation_tokens_per_second", window="1m", model=MODEL) == 1234.0
    assert value("failures_total", reason="queue_full") == 6262


def test_prometheus_reads_how_the_guard_stands() -> None:
    found = samples(get("/metrics/cluster", cluster_figures()).body)

    def value(name: str, **labels: str) -> float:
        return found[f"chairlift_cluster_guard_{name}", frozenset(labels.items())]

    modes = {mode: value("mode", mode=mode) for mode in ("act", "shadow", "off")}
    assert modes == {"act": 1, "shadow": 0, "off": 0}
    assert (value("rung"), value("admit_ratio")) == (1, 1)
    assert (value("frozen"), value("held"), value("waiting")) == (0, 0, 0)
    assert value("signal_value", signal="kv_use") == 0.97
    assert value("signal_threshold", signal="kv_use", owner="capacity") == 0.9
    assert (
        value("signal_active", signal="kv_use"),
        value("signal_active", signal="burn_rate"),
    ) == (
        1,
        0,
    )
    unknown = ("chairlift_cluster_guard_signal_value", frozenset({("signal", "burn_rate")}))
    assert unknown not in found
    assert value("moves_total", kind="up", signal="kv_use", rung="no_speculation") == 1
    assert (value("calls_sent_total"), value("calls_failed_total")) == (3, 1)


def test_a_guard_by_hand_and_one_that_is_off() -> None:
    state = guard_figures(held_by="ada", waiting_for="stop", frozen=True, admit=0.4)
    found = samples(cluster_page(cluster_figures(guard=state))[0])
    for name, value in (("held", 1), ("waiting", 1), ("frozen", 1), ("admit_ratio", 0.4)):
        assert found[f"chairlift_cluster_guard_{name}", frozenset()] == value
    off = samples(cluster_page(cluster_figures(guard={"mode": "off"}))[0])
    guards = {name for name, _ in off if "_guard_" in name}
    assert guards == {"chairlift_cluster_guard_mode"}
    assert not [
        name
        for name, _ in samples(cluster_page(cluster_figures(guard=None))[0])
        if "_guard_" in name
    ]


def test_what_is_not_known_is_left_out_of_the_prometheus_page() -> None:
    figures = cluster_figures(oldest_waiting_s=None)
    names = samples(cluster_page(figures)[0])
    assert not [key for key in names if key[0] == "chairlift_cluster_oldest_waiting_seconds"]
    assert not [key for key in names if key[0] == "chairlift_cluster_cost_per_met_request"]
    replica = frozenset({("replica", "replica-3")})
    assert ("chairlift_cluster_replica_seats", replica) not in names
    assert ("chairlift_cluster_replica_seats", frozenset({("replica", "replica-1")})) in names
