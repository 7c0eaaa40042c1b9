from chairlift.cluster.fairness import VirtualCounters
from chairlift.router.fair_queue import FairQueue
from chairlift.router.metrics import Outcome, RequestEnd, RouterMetrics
from chairlift.router.tenant_metrics import TenantMetrics


def page(metrics: RouterMetrics) -> list[str]:
    return metrics.render()[0].decode().splitlines()


def test_the_page_tells_tenants_apart_and_counters_never_fall():
    counters = VirtualCounters()
    queue = FairQueue(counters, fair=True, promote_after_s=10.0)
    labels = {"model_name": "m", "router": "r"}
    tenants = TenantMetrics(labels, queue, counters)
    metrics = RouterMetrics("m", lambda: [], router_id="r", tenants=tenants)
    metrics.started = 2
    for tenant, outcome, label in (
        ("a", Outcome.FINISHED, "stop"),
        ("b", Outcome.REJECTED, "full"),
    ):
        metrics.end(RequestEnd(tenant, outcome, label, 1.0, None, 0, 0))
    counters.charge("a", input_tokens=10, output_tokens=5)
    told = 'model_name="m",router="r",tenant="a"'
    assert f"chairlift_tenant_service_total{{{told}}} 20.0" in page(metrics)
    counters.charge("a", input_tokens=-10)
    lines = page(metrics)
    assert f"chairlift_tenant_service_total{{{told}}} 20.0" in lines
    assert f"chairlift_tenant_counter{{{told}}} 10.0" in lines
    assert any(
        line.startswith("chairlift_tenant_requests_total{")
        and 'outcome="rejected",reason="full",router="r",tenant="b"' in line
        for line in lines
    )
    assert any(line.startswith("chairlift_queue_requests{") for line in lines)
