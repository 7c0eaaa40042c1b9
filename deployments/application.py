"""The Serve application: which deployments there are, and how they hang together."""

from __future__ import annotations

from ray import serve
from ray.serve.config import RequestRouterConfig

from chairlift.cluster.config import ServiceConfig
from chairlift.deployments.membership_router import MembershipRouter
from chairlift.deployments.router_group import RouterGroup
from chairlift.deployments.worker_group import WorkerGroup

__all__ = ["APPLICATION", "build_application"]

APPLICATION = "chairlift"
HEALTH_TIMEOUT_S = 10.0
GRACEFUL_SHUTDOWN_S = 20.0
# Serve limits its own calls only; requests reach routers and workers on their own connections.
MAX_SERVE_CALLS = 10_000
START_ATTEMPTS = 3


def build_application(config: ServiceConfig) -> serve.Application:
    """Routers in front, one worker group a replica of the model behind them."""
    common = {
        "ray_actor_options": {"num_cpus": 0},
        "health_check_period_s": config.workers.health_period_s,
        "health_check_timeout_s": HEALTH_TIMEOUT_S,
        "graceful_shutdown_timeout_s": GRACEFUL_SHUTDOWN_S,
        "graceful_shutdown_wait_loop_s": 0.1,
        "max_ongoing_requests": MAX_SERVE_CALLS,
        "max_constructor_retry_count": START_ATTEMPTS,
    }
    workers = serve.deployment(name="WorkerGroup")(WorkerGroup).options(
        num_replicas=config.workers.replicas,
        placement_group_bundles=[{"CPU": 1}],
        placement_group_strategy="STRICT_PACK",
        request_router_config=RequestRouterConfig(request_router_class=MembershipRouter),
        **common,
    )
    routers = serve.deployment(name="Router")(RouterGroup).options(
        num_replicas=config.router.replicas, **common
    )
    return routers.bind(config, workers.bind(config))
