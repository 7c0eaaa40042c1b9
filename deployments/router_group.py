"""The Serve deployment of routers: each replica holds a Router and its own listeners.

Owns the wiring of one router process, and the order in which it leaves; admission, placement and
following are in ``router/``, the APIs behind ``deployments/doors.py``.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NoReturn

from ray import serve
from ray.serve.handle import DeploymentHandle

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.fairness_figures import BatchShape
from chairlift.cluster.figures import FiguresSettings, Targets
from chairlift.cluster.guard_policy import GuardPolicy
from chairlift.cluster.guard_state import GuardState, Mode
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.cluster.model_spec import ModelSpec
from chairlift.cluster.protocol import Controls
from chairlift.cluster.signals import SignalSettings
from chairlift.cluster.tracing import start_tracing
from chairlift.deployments import hub
from chairlift.deployments.certificate_ends import certificate_families
from chairlift.deployments.data_plane import DataPlane
from chairlift.deployments.doors import Doors
from chairlift.deployments.guard_door import GuardDoor
from chairlift.deployments.guard_keeper import GuardSettings
from chairlift.deployments.http import HttpApp
from chairlift.deployments.hub import HubSettings
from chairlift.deployments.hub_link import HubLink
from chairlift.deployments.membership import kind_of, process_membership
from chairlift.deployments.operators import Operators
from chairlift.deployments.other_routers import OtherRouters
from chairlift.deployments.otlp_metrics import otlp_metrics
from chairlift.deployments.reload import read_told
from chairlift.deployments.stream_tls import RouterEnd
from chairlift.deployments.tls import Tls
from chairlift.router.chat_template import ChatTemplate
from chairlift.router.ledgers import Ledgers
from chairlift.router.passport import Passport
from chairlift.router.router import Router
from chairlift.router.tokenizer import Tokenizer

__all__ = ["DRAIN_TIMEOUT_S", "RouterGroup"]

STOP_GRACE_S = 5.0
"""For responses under way when the whole service stops."""
DRAIN_TIMEOUT_S = 120.0
"""For those under way when a router makes way for another one, or for fewer."""
STATUS_TIMEOUT_S = 2.0
LOOK_S = 0.25


class RouterGroup:
    """One router."""

    # Ray awaits an async __init__; type checkers do not know of such a thing.
    async def __init__(  # type: ignore[misc]
        self,
        config: ServiceConfig,
        workers: DeploymentHandle,
        policy: GuardPolicy,
        plane: DataPlane,
    ) -> None:
        _log_at_once()
        passport = await asyncio.to_thread(_passport, config, plane)
        path = resolve_model(config.model.path)
        spec = await asyncio.to_thread(read_spec, path)
        tokenizer = await asyncio.to_thread(Tokenizer.load, path)
        template = await asyncio.to_thread(ChatTemplate.load, path, tokenizer)
        model_name = config.model.name or spec.name
        self._talk: asyncio.Task[None] | None = None
        self._peers: Any = None
        self._router = Router(
            tokenizer, config.router, model_name=model_name, telemetry=config.telemetry
        )
        self._router.tracer = start_tracing(config.tracing, self._router.id)
        self._router.passport = passport
        self._router.may_sleep = config.workers.least == 0
        self._router.metrics.besides = partial(certificate_families, config)
        settings = _hub_settings(config, policy, spec)
        connect = partial(hub.connect, settings)
        self._link = HubLink(self._router.share, self._router.reporter, self._router, connect)
        if settings.guard is None:
            # Workers may still obey what a Guard has said that was there before.
            version = int(time.time())
            self._router.obey(GuardState(version, controls=replace(_base(config), version=version)))
        self._tenants = config.who_is_served()
        self._operators = Operators(config.who_may_operate())
        app = HttpApp(
            self._router,
            tokenizer,
            template,
            model_name=model_name,
            context_length=spec.context_length,
            config=config.http,
            max_choices=config.router.max_choices,
            tenants=self._tenants,
            tool_format=config.model.tool_format,
            figures=self._link.figures,
            guard=GuardDoor(self._link if settings.guard else None, self._operators),
            ledgers=Ledgers(lambda: process_membership().members, passport),
        )
        # options() makes the handle subscribe to membership; no request goes through it.
        self._workers = workers.options(method_name="check_health")
        process_membership().listen(kind_of(config), self._router.update_members)
        tls = None if config.http.tls is None else Tls(config.http.tls)
        elsewhere = OtherRouters(self._ask_all).abort
        self._server = Doors(app, config.http, config.grpc, tls, elsewhere)
        await self._server.start()
        families = self._router.metrics.families
        self._metrics = otlp_metrics(config.tracing, self._router.id, families)
        if self._metrics is not None:
            self._metrics.start()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Called by Serve at the start, and when ``user_config`` has changed.

        Keys hold for what is asked from now on. A router that is alone and has nothing to report
        needs no Hub.
        """
        config = read_told(user_config)
        self._tenants.become(config.who_is_served())
        self._operators.become(config.who_may_operate())
        self._router.may_sleep = config.workers.least == 0
        needed = config.router.replicas > 1 or self._router.reporter.enabled
        if needed and self._talk is None:
            self._talk = asyncio.create_task(self._keep_in_touch(), name="talk with the Hub")
        elif not needed and self._talk is not None:
            self._talk.cancel()
            self._talk = None

    async def _keep_in_touch(self) -> NoReturn:
        """Talk with the Hub, but first let the workers start, which want all cores for that.

        Where there may be none, it is the Hub that has the first one started.
        """
        while True:
            await asyncio.sleep(LOOK_S)
            if self._router.may_sleep or any(view.ready for view in self._router.replicas()):
                await self._link.run()

    async def look(self, at: Literal["health", "guard"]) -> dict[str, Any] | None:
        """What its port tells of itself, for whoever has Ray rather than a way to the port."""
        if at == "guard":
            return await self._link.guard()
        return {"replicas": [{"live": view.ready} for view in self._router.replicas()]}

    async def abort(self, tenant: str, request_id: str, asker: str) -> int:
        """End what the tenant calls so; called by all routers, and by itself when it asks all."""
        return 0 if asker == self._router.id else self._server.abort_here(tenant, request_id)

    async def _ask_all(self, tenant: str, request_id: str) -> list[int | BaseException]:
        """What each router that Serve knows of has ended, as ``other_routers.AskAll``."""
        if self._peers is None:
            me = serve.get_replica_context()
            get = serve.get_deployment_handle
            self._peers = await asyncio.to_thread(get, me.deployment, me.app_name)
        asked = self._peers.broadcast("abort", tenant, request_id, self._router.id)
        answers: list[int | BaseException] = await asked.results_async(return_exceptions=True)
        return answers

    def check_health(self) -> None:
        """Raises when a listener has ended."""
        if not self._server.alive:
            raise RuntimeError("a listener has ended")

    async def __del__(self) -> None:
        """Called by Serve on a graceful stop."""
        if not hasattr(self, "_server"):
            return
        if await _service_stops():
            await self._server.leave(linger_s=0.0)
            await self._router.drain(STOP_GRACE_S)
        else:
            # Others take what is new; a client that keeps its connection to us is served here.
            await self._server.leave()
            await self._server.quiet(DRAIN_TIMEOUT_S)
        if self._talk is not None:
            self._talk.cancel()
        await self._router.close()  # what is still open ends with an error that says so
        await self._server.stop(STOP_GRACE_S)
        if self._metrics is not None:
            await self._metrics.stop()
        if self._router.tracer is not None:
            await asyncio.to_thread(self._router.tracer.close)


def _passport(config: ServiceConfig, plane: DataPlane) -> Passport:
    """What workers are shown; reads files."""
    tls = config.workers.tls
    token = plane.find_token(config.workers)
    return Passport(token, None if tls is None else RouterEnd(tls).newest)


def _log_at_once() -> None:
    """Serve holds back what its replicas say until it is much; what ours say is for people, now."""
    logger = logging.getLogger("chairlift")
    handler = logging.StreamHandler(sys.__stderr__)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False


def _hub_settings(config: ServiceConfig, policy: GuardPolicy, spec: ModelSpec) -> HubSettings:
    figures = _figures_settings(config, spec)
    guard = None
    if config.guard_mode is not Mode.OFF:
        limits = policy.limits
        signals = SignalSettings(
            config.telemetry.first_token_target_s,
            limits.objective,
            limits.slowdown_ratio,
            limits.starvation_s,
            figures.shape,
        )
        guard = GuardSettings(policy, config.guard_mode, _base(config), signals)
    return HubSettings(
        figures,
        config.telemetry.tenants,
        guard,
        config.tracing,
        config.model.name or spec.name,
    )


def _base(config: ServiceConfig) -> Controls:
    """What is in force while all is well."""
    return config.engine.controls(fair=config.router.fair)


def _figures_settings(config: ServiceConfig, spec: ModelSpec) -> FiguresSettings:
    telemetry, seats = config.telemetry, config.engine.max_sequences * config.workers.most
    return FiguresSettings(
        Targets(telemetry.first_token_target_s, telemetry.per_token_target_s),
        telemetry.price_per_replica_hour,
        BatchShape(spec.context_length, spec.context_length * seats),
    )


async def _service_stops() -> bool:
    """Whether it is not this router alone that goes; also when nobody can tell any more."""
    try:
        status = await asyncio.wait_for(asyncio.to_thread(serve.status), STATUS_TIMEOUT_S)
    except Exception:
        return True
    return all(each.status == "DELETING" for each in status.applications.values())
