"""The Serve application: which deployments there are, and how they hang together.

Owns what a change of the configuration does to replicas that run. Serve compares each deployment's
version with that of its replicas: equal versions are only scaled, others are replaced one after
the other; ``user_config`` is told to replicas that go on.
"""

from __future__ import annotations

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.guard_policy import GuardPolicy
from chairlift.deployments.autoscaling import replicas
from chairlift.deployments.data_plane import DataPlane
from chairlift.deployments.membership_router import MembershipRouter
from chairlift.deployments.placement import place
from chairlift.deployments.reload import router_version, told_to_routers, worker_version
from chairlift.deployments.router_group import DRAIN_TIMEOUT_S, RouterGroup
from chairlift.deployments.worker_group import WorkerGroup

__all__ = ["APPLICATION", "ROUTERS", "build_application"]

APPLICATION = "chairlift"
ROUTERS = "Router"
HEALTH_TIMEOUT_S = 10.0
WORKER_SHUTDOWN_S = 20.0
ROUTER_SHUTDOWN_S = DRAIN_TIMEOUT_S + 20.0
# Serve limits its own calls only; requests reach routers and workers on their own connections.
MAX_SERVE_CALLS = 10_000
START_ATTEMPTS = 3
ROUTER_CPUS = 0.001
"""Next to nothing, but not on a node that has none to give, such as a head that is to keep free."""
# Of the replicas that are replaced: rounded up, so always one, which comes before one goes.
SURGE_PERCENT = 1


def build_application(
    config: ServiceConfig, policy: GuardPolicy, plane: DataPlane
) -> serve.Application:
    """Routers in front, one worker group a replica of the model behind them.

    ``policy``: the Guard's; it travels as it was read, for its file may be elsewhere or changed.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    placement = place(config, [int(resources.get("GPU", 0)) for resources in nodes])
    common = {
        "health_check_period_s": config.workers.health_period_s,
        "health_check_timeout_s": HEALTH_TIMEOUT_S,
        "graceful_shutdown_wait_loop_s": 0.1,
        "max_ongoing_requests": MAX_SERVE_CALLS,
        "max_constructor_retry_count": START_ATTEMPTS,
        "_internal": True,  # Serve's own way to pass a version
    }
    workers = serve.deployment(name="WorkerGroup")(WorkerGroup).options(
        **replicas(config),
        version=worker_version(config),
        placement_group_bundles=placement.bundles,
        placement_group_strategy=placement.strategy,
        request_router_config=RequestRouterConfig(request_router_class=MembershipRouter),
        graceful_shutdown_timeout_s=WORKER_SHUTDOWN_S,
        ray_actor_options={"num_cpus": 0},
        **common,
    )
    routers = serve.deployment(name=ROUTERS)(RouterGroup).options(
        num_replicas=config.router.replicas,
        version=router_version(config, policy),
        user_config=told_to_routers(config),
        # The port stays served, even by a single router; of workers, two would not fit in memory.
        max_surge_percent=SURGE_PERCENT,
        graceful_shutdown_timeout_s=ROUTER_SHUTDOWN_S,
        ray_actor_options={"num_cpus": ROUTER_CPUS, "resources": dict(config.router.resources)},
        **common,
    )
    return routers.bind(config, workers.bind(config, plane), policy, plane)
