"""The Hub: one Ray actor for what concerns all routers.

Owns the actor's name and life. It belongs to the router that made it: when that one goes, the Hub
goes too, and whoever notices first makes another. Nothing is lost by that for long, since routers
tell it each time all that tenants have ever used, and to one that knows nothing their last hour.
What it keeps is ``cluster.exchange`` and ``cluster.windows``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any

import ray

from chairlift.cluster.exchange import Exchange, TenantUse
from chairlift.cluster.figures import FiguresSettings, figures
from chairlift.cluster.telemetry import Report
from chairlift.cluster.windows import Fold
from chairlift.deployments.hub_link import HubGone

__all__ = ["Hub", "HubClient", "connect"]

NAME = "chairlift-hub"
NAMESPACE = "chairlift"
MAX_CALLS = 64
FRESH_S = 0.5
"""Figures are not computed anew for so long, however many ask."""


class Hub:
    """Answers at once, so that calls never pile up."""

    def __init__(self, settings: FiguresSettings, most_tenants: int) -> None:
        """Know nothing.

        Args:
            settings: of the figures.
            most_tenants: that are told apart.
        """
        self._settings = settings
        self._exchange = Exchange()
        self._fold = Fold(most=most_tenants)
        self._figures: dict[str, Any] = {}
        self._figures_at = -FRESH_S

    async def put(self, router_id: str, uses: Mapping[str, TenantUse]) -> dict[str, TenantUse]:
        """What a router's tenants have used; returns what they have used at all others."""
        return self._exchange.put(router_id, uses, time.monotonic())

    async def report(self, report: Report) -> int:
        """What a router has counted; returns after which second it is to go on, -1: with all."""
        return self._fold.put(report, time.time())

    async def figures(self) -> dict[str, Any]:
        """``cluster.figures`` of the moment, as JSON can hold them."""
        now = time.monotonic()
        if now - self._figures_at >= FRESH_S:
            made = figures(self._fold, self._settings, time.time())
            self._figures, self._figures_at = dataclasses.asdict(made), now
        return self._figures


class HubClient:
    """The Hub as a router sees it; whoever made the Hub keeps it alive by keeping this."""

    def __init__(self, actor: ray.actor.ActorHandle) -> None:
        self._actor = actor

    async def put(self, router_id: str, uses: Mapping[str, TenantUse]) -> Mapping[str, TenantUse]:
        with _telling_death():
            others: Mapping[str, TenantUse] = await self._actor.put.remote(router_id, uses)
        return others

    async def report(self, report: Report) -> int:
        with _telling_death():
            acknowledged: int = await self._actor.report.remote(report)
        return acknowledged

    async def figures(self) -> dict[str, Any]:
        with _telling_death():
            known: dict[str, Any] = await self._actor.figures.remote()
        return known


async def connect(settings: FiguresSettings, most_tenants: int) -> HubClient:
    """Find the Hub, or make it, with these settings."""
    return HubClient(await asyncio.to_thread(_actor, settings, most_tenants))


@contextlib.contextmanager
def _telling_death() -> Iterator[None]:
    try:
        yield
    except ray.exceptions.ActorDiedError as error:
        raise HubGone(str(error)) from None


def _actor(settings: FiguresSettings, most_tenants: int) -> ray.actor.ActorHandle:
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
        .remote(settings, most_tenants)
    )
