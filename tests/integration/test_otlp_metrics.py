"""A real service's metrics, read back from a collector: its routers' and its Hub's."""

import json
import urllib.request

import pytest

from support.collector import collector
from support.service import running_service, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]

SENT_DEADLINE_S = 60.0
REQUESTS, TOKENS = 3, 7


def test_routers_and_the_hub_send_what_their_pages_have() -> None:
    with collector() as collected:
        config = {
            "engine": {"simulated_step_ms": 2},
            "tracing": {"endpoint": collected.endpoint, "sample": 0.0, "service_name": "ours"},
        }
        with running_service(config=config) as service:
            body = {"prompt": "All that glitters", "max_tokens": TOKENS, "ignore_eos": True}
            for _ in range(REQUESTS):
                request = urllib.request.Request(
                    f"{service.url}/v1/completions",
                    json.dumps(body).encode(),
                    {"content-type": "application/json"},
                )
                urllib.request.urlopen(request, timeout=60.0).read()

            def hubs_count() -> float:
                found = collected.by_instance("chairlift_cluster_requests_finished").get("hub")
                return found.value if found else 0.0

            def routers_count() -> int:
                found = collected.points("gen_ai.server.time_to_first_token")
                return sum(sum(point.counts) for point in found)

            wait_until(lambda: hubs_count() == REQUESTS, SENT_DEADLINE_S, "the Hub has told")
            wait_until(lambda: routers_count() == REQUESTS, SENT_DEADLINE_S, "the router has told")
            (usage,) = collected.points("gen_ai.client.token.usage", gen_ai_token_type="output")
            assert usage.value == REQUESTS * TOKENS
            (balanced,) = collected.points("chairlift_cluster_requests_balanced")
            assert balanced.value == 1
            wait_until(
                lambda: bool(collected.points("chairlift_cluster_guard_rung")),
                SENT_DEADLINE_S,
                "the Guard's rung has come",
            )
