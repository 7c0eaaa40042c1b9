"""The Hub: one Ray actor for what concerns all routers.

Owns the actor's name and life. It belongs to the router that made it: when that one goes, the Hub
goes too, and whoever notices first makes another. Nothing is lost by that for long, since routers
tell it each time all that they have ever counted. What it keeps is ``cluster.exchange``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import ray

from chairlift.cluster.exchange import Exchange, TenantUse
from chairlift.deployments.hub_link import HubGone, Put

__all__ = ["Hub", "connect"]

NAME = "chairlift-hub"
NAMESPACE = "chairlift"
MAX_CALLS = 64


class Hub:
    """Answers at once, so that calls never pile up."""

    def __init__(self) -> None:
        self._exchange = Exchange()

    async def put(self, router_id: str, uses: Mapping[str, TenantUse]) -> dict[str, TenantUse]:
        """What a router's tenants have used; returns what they have used at all others."""
        return self._exchange.put(router_id, uses, time.monotonic())


async def connect() -> Put:
    """Find the Hub, or make it; whoever makes it keeps it alive by keeping what is returned."""
    hub = await asyncio.to_thread(_actor)

    async def put(router_id: str, uses: Mapping[str, TenantUse]) -> Mapping[str, TenantUse]:
        try:
            others: Mapping[str, TenantUse] = await hub.put.remote(router_id, uses)
        except ray.exceptions.ActorDiedError as error:
            raise HubGone(str(error)) from None
        return others

    return put


def _actor() -> ray.actor.ActorHandle:
    return (
        ray.remote(Hub)
        .options(
            name=NAME,
            namespace=NAMESPACE,
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=MAX_CALLS,
        )
        .remote()
    )
