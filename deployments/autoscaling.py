"""How many worker replicas Serve is told to have: a number, or a policy that it asks.

Owns what the configuration comes to for Serve and for the policy (``scaling_policy``).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from chairlift.cluster.autoscaling import ScalingPolicy
from chairlift.cluster.config import ServiceConfig

__all__ = ["replicas", "scaling_policy"]

POLICIES = "chairlift.deployments.scaling_policy"
"""Serve's controller imports it by name."""


def replicas(config: ServiceConfig) -> dict[str, Any]:
    """Options of the deployment of workers: how many there are, or who says so.

    There are no ``initial_replicas``, for at each change of the options Serve goes back to them.
    """
    workers, scaling = config.workers, config.workers.autoscaling
    if scaling is None:
        return {"num_replicas": workers.replicas}
    own_rule = scaling.policy == "ongoing-requests"
    policy = AutoscalingPolicy(
        policy_function=f"{POLICIES}:{'OngoingRequests' if own_rule else 'HubPolicy'}",
        policy_kwargs=dataclasses.asdict(scaling_policy(config)),
    )
    return {
        "autoscaling_config": AutoscalingConfig(
            min_replicas=workers.least,
            max_replicas=workers.most,
            target_ongoing_requests=scaling.ongoing_requests,
            look_back_period_s=scaling.look_back_s,
            # Chairlift's policy has cool-downs of its own.
            upscale_delay_s=scaling.up_delay_s if own_rule else 0.0,
            downscale_delay_s=scaling.down_delay_s if own_rule else 0.0,
            policy=policy,
        )
    }


def scaling_policy(config: ServiceConfig) -> ScalingPolicy:
    """As configured; for a service that is scaled."""
    scaling, telemetry = config.workers.autoscaling, config.telemetry
    assert scaling is not None
    return ScalingPolicy(
        min_replicas=scaling.min_replicas,
        max_replicas=scaling.max_replicas,
        first_token_target_s=telemetry.first_token_target_s,
        target_load=scaling.target_load,
        low_load=scaling.low_load,
        queue_share=scaling.queue_share,
        objective=scaling.objective,
        lead_s=scaling.start_s,
        up_cool_down_s=scaling.up_cool_down_s,
        down_cool_down_s=scaling.down_cool_down_s,
        hold_s=scaling.hold_s,
        down_share=scaling.down_share,
        idle_s=scaling.idle_s,
        price_per_replica_hour=telemetry.price_per_replica_hour,
        max_price_per_hour=scaling.max_price_per_hour,
        max_replica_hours_per_day=scaling.max_replica_hours_per_day,
    )
