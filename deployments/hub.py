"""The Hub: one Ray actor for what concerns all routers.

Owns the actor's name and life. It belongs to the router that made it: when that one goes, the Hub
goes too, and whoever notices first makes another. Nothing is lost by that for long, since routers
tell it each time all that tenants have ever used, and to one that knows nothing their last hour and
what the Guard had decided. A router is replaced when the settings change; so once all have been,
the Hub is one that a new router made, with the new settings.

What it keeps is ``cluster.exchange``, ``cluster.windows``, ``deployments.guard_keeper`` and
``deployments.scaling_keeper``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from chairlift.cluster.config_sections import TracingConfig
from chairlift.cluster.errors import NotFound, RequestError
from chairlift.cluster.exchange import Exchange, TenantUse
from chairlift.cluster.figures import FiguresSettings, figures
from chairlift.cluster.scaling import Fleet, Scaling
from chairlift.cluster.telemetry import Reply, Report
from chairlift.cluster.tracing import start_tracing
from chairlift.cluster.windows import Fold
from chairlift.deployments.cluster_metrics import cluster_families
from chairlift.deployments.guard_events import GuardEvents, Origin
from chairlift.deployments.guard_keeper import Acted, GuardKeeper, GuardSettings, Order
from chairlift.deployments.hub_link import HubGone
from chairlift.deployments.hub_name import HUB, NAMESPACE
from chairlift.deployments.otlp_metrics import otlp_metrics
from chairlift.deployments.scaling_keeper import ScalingKeeper

__all__ = ["Hub", "HubClient", "HubSettings", "connect"]

MAX_CALLS = 64
FRESH_S = 0.5
"""Figures are not computed anew for so long, however many ask."""


@dataclass(frozen=True, slots=True)
class HubSettings:
    """What a Hub is made with.

    Attributes:
        figures: what they are made with.
        tenants: that are told apart at most.
        guard: None for none.
        tracing: where its moves are traced to.
        model: for people who are called.
    """

    figures: FiguresSettings
    tenants: int
    guard: GuardSettings | None
    tracing: TracingConfig
    model: str


class Hub:
    """Answers at once, so that calls never pile up."""

    def __init__(self, settings: HubSettings) -> None:
        """Know nothing."""
        self._settings = settings
        self._exchange = Exchange()
        self._fold = Fold(most=settings.tenants)
        self._scaling = ScalingKeeper(self._fold)
        self._keeper = None if settings.guard is None else _keeper(settings, self._fold)
        self._figures: dict[str, Any] = {}
        self._figures_at = -FRESH_S
        self._metrics = otlp_metrics(
            settings.tracing, "hub", lambda: cluster_families(self._known())
        )

    async def put(self, router_id: str, uses: Mapping[str, TenantUse]) -> dict[str, TenantUse]:
        """What a router's tenants have used; returns what they have used at all others."""
        return self._exchange.put(router_id, uses, time.monotonic())

    async def report(self, report: Report) -> Reply:
        """What a router has counted; returns how it is to go on, and what it is to obey."""
        now = time.time()
        acknowledged = self._fold.put(report, now)
        if self._metrics is not None:
            self._metrics.start()  # here, since a loop runs by now
        if self._keeper is None:
            return Reply(acknowledged)
        return self._keeper.heard(report, acknowledged, now, wakes=self._scaling.wakes(now))

    async def figures(self) -> dict[str, Any]:
        """``cluster.figures`` of the moment, the Guard and autoscaling, as JSON can hold them."""
        return self._known()

    def _known(self) -> dict[str, Any]:
        now = time.monotonic()
        if now - self._figures_at >= FRESH_S:
            made = figures(self._fold, self._settings.figures, time.time())
            guard = None if self._keeper is None else self._keeper.view(time.time())
            views = {"guard": guard, "autoscaling": self._scaling.view(time.time())}
            self._figures, self._figures_at = dataclasses.asdict(made) | views, now
        return self._figures

    async def guard(self) -> dict[str, Any] | None:
        """As ``guard_view`` describes it; None while it is not known."""
        return None if self._keeper is None else self._keeper.view(time.time())

    async def act(self, order: Order) -> Acted:
        """What a person wants of the Guard; as ``GuardKeeper.act``."""
        if self._keeper is None:
            raise NotFound("the Guard is off", code="guard_off")
        return self._keeper.act(order, time.time())

    async def scale(self, fleet: Fleet) -> Scaling:
        """How many replicas there should be; asked by Serve's controller."""
        return self._scaling.decide(fleet, time.time())


class HubClient:
    """The Hub as a router sees it; whoever made the Hub keeps it alive by keeping this."""

    def __init__(self, actor: ray.actor.ActorHandle) -> None:
        self._actor = actor

    async def put(self, router_id: str, uses: Mapping[str, TenantUse]) -> Mapping[str, TenantUse]:
        with _telling_death():
            others: Mapping[str, TenantUse] = await self._actor.put.remote(router_id, uses)
        return others

    async def report(self, report: Report) -> Reply:
        with _telling_death():
            reply: Reply = await self._actor.report.remote(report)
        return reply

    async def figures(self) -> dict[str, Any]:
        with _telling_death():
            known: dict[str, Any] = await self._actor.figures.remote()
        return known

    async def guard(self) -> dict[str, Any] | None:
        with _telling_death():
            known: dict[str, Any] | None = await self._actor.guard.remote()
        return known

    async def act(self, order: Order) -> Acted:
        with _telling_death():
            acted: Acted = await self._actor.act.remote(order)
        return acted


async def connect(settings: HubSettings) -> HubClient:
    """Find the Hub, or make it, with these settings."""
    return HubClient(await asyncio.to_thread(_actor, settings))


def _keeper(settings: HubSettings, fold: Fold) -> GuardKeeper:
    guard, tracing = settings.guard, settings.tracing
    assert guard is not None
    # Moves are rare and each of them matters, whatever share of the requests is traced.
    tracer = start_tracing(tracing.model_copy(update={"sample": 1.0}), "hub")
    origin = Origin(tracing.service_name, settings.model)
    return GuardKeeper(guard, fold, GuardEvents(origin, guard.policy.webhooks, tracer))


@contextlib.contextmanager
def _telling_death() -> Iterator[None]:
    """Also tells errors of the Hub's own as what they are."""
    try:
        yield
    except ray.exceptions.ActorDiedError as error:
        raise HubGone(str(error)) from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, RequestError):
            raise error.cause from None
        raise


def _actor(settings: HubSettings) -> ray.actor.ActorHandle:
    return (
        ray.remote(Hub)
        .options(
            name=HUB,
            namespace=NAMESPACE,
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=MAX_CALLS,
            # It goes when this router goes, and need not be lost with another node besides.
            scheduling_strategy=NodeAffinitySchedulingStrategy(
                ray.get_runtime_context().get_node_id(), soft=True
            ),
        )
        .remote(settings)
    )
