"""A router's talk with the Hub: what tenants have used, what was counted, what is to be obeyed.

Owns when to talk, and that a Hub that is slow, dead or starting anew never harms the router, which
then goes on with what it knows, and with what is in force. It knows no Ray (``deployments.hub``),
and nothing of what the numbers mean (``router.shared_use``, ``router.recorder``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeAlias

from chairlift.cluster.errors import RequestError, Unavailable
from chairlift.cluster.exchange import TenantUse
from chairlift.cluster.guard_state import GuardState
from chairlift.cluster.telemetry import Reply, Report
from chairlift.deployments.guard_keeper import Acted, Order

__all__ = ["HubGone", "HubLink", "LinkTiming"]

logger = logging.getLogger(__name__)

Uses: TypeAlias = Mapping[str, TenantUse]

EVERYTHING = -1
"""In place of an acknowledged second: nothing is known of this router."""


class HubGone(Exception):
    """The Hub has ended for good; another one has to be found or made."""


class Hub(Protocol):
    """The Hub, as ``deployments.hub.Hub`` describes it; each call may raise HubGone."""

    async def put(self, router_id: str, uses: Uses, /) -> Uses: ...

    async def report(self, report: Report, /) -> Reply: ...

    async def figures(self) -> dict[str, Any]: ...

    async def guard(self) -> dict[str, Any] | None: ...

    async def act(self, order: Order, /) -> Acted: ...


class Share(Protocol):
    """What is needed of ``router.shared_use.SharedUse``."""

    def uses(self, now: float, /) -> Uses: ...

    def apply(self, others: Uses, now: float, /) -> None: ...


class Reports(Protocol):
    """What is needed of ``router.recorder.Reporter``."""

    @property
    def router_id(self) -> str: ...

    @property
    def enabled(self) -> bool: ...

    def report(self, acknowledged: int, /) -> Report: ...


class Obedient(Protocol):
    """What is needed of ``router.router.Router``: newer states are put in force."""

    def obey(self, state: GuardState, /) -> None: ...


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """Seconds.

    Attributes:
        busy_s, idle_s: between two talks about uses while there is news, and without any.
        report_s: between two reports.
        answer_s: for an answer.
        figures_s: for the figures and the Guard, which somebody waits for.
        max_backoff_s: between two talks after failures, so that a Hub that was started anew soon
            knows all again.
    """

    busy_s: float = 0.2
    idle_s: float = 2.0
    report_s: float = 1.0
    answer_s: float = 10.0
    figures_s: float = 1.0
    max_backoff_s: float = 0.4


class HubLink:
    """Keeps one router and the Hub in touch, as long as ``run`` runs."""

    def __init__(
        self,
        share: Share,
        reports: Reports,
        router: Obedient,
        connect: Callable[[], Awaitable[Hub]],
        timing: LinkTiming | None = None,
    ) -> None:
        self._share = share
        self._reports = reports
        self._router = router
        self._connect = connect
        self._timing = timing or LinkTiming()
        self._hub: Hub | None = None
        self._said: Uses | None = None
        self._said_at = 0.0
        self._reported_at = 0.0
        self._acknowledged = EVERYTHING
        self._failures = 0

    async def run(self) -> NoReturn:
        """Until it is cancelled, by who then knows of no other router."""
        try:
            while True:
                await self._turn()
                pause_s = self._timing.busy_s * 2 ** min(self._failures, 16)
                await asyncio.sleep(min(pause_s, self._timing.max_backoff_s))
        finally:
            self._share.apply({}, time.monotonic())

    async def figures(self) -> dict[str, Any] | None:
        """The cluster's figures; None when the Hub does not answer soon."""
        if self._hub is None:
            return None
        try:
            async with asyncio.timeout(self._timing.figures_s):
                return await self._hub.figures()
        except Exception:  # ``run`` notices what ails it
            return None

    async def guard(self) -> dict[str, Any] | None:
        """How the Guard stands; None when nobody can tell soon."""
        if self._hub is None:
            return None
        try:
            async with asyncio.timeout(self._timing.figures_s):
                return await self._hub.guard()
        except Exception:
            return None

    async def act(self, order: Order) -> dict[str, Any]:
        """Have the Guard do what a person wants; returns how it then stands.

        Raises:
            InvalidRequest, NotFound: it makes no sense.
            Unavailable: the Hub does not answer (``no_hub``).
        """
        try:
            if self._hub is None:
                raise HubGone
            async with asyncio.timeout(self._timing.figures_s):
                acted = await self._hub.act(order)
        except RequestError:
            raise
        except Exception as error:
            logger.warning("the Hub did not answer an order of %s: %r", order.by, error)
            raise Unavailable(
                "the Hub does not answer; what is in force stays", code="no_hub", retry_after_s=2.0
            ) from None
        self._router.obey(acted.state)
        return acted.view

    async def _turn(self) -> None:
        try:
            async with asyncio.timeout(self._timing.answer_s):
                if self._hub is None:
                    self._hub = await self._connect()
                await self._exchange(self._hub)
                await self._report(self._hub)
        except Exception as error:  # whatever ails the Hub, the router goes on
            if isinstance(error, HubGone):
                self._hub = None
            if not self._failures:
                logger.warning("the Hub does not answer, each router decides alone: %r", error)
            self._failures += 1
            return
        if self._failures:
            logger.info("the Hub answers again")
        self._failures = 0

    async def _exchange(self, hub: Hub) -> None:
        """Tell what tenants have used, and hear what they have used elsewhere."""
        now = time.monotonic()
        uses = self._share.uses(now)
        if uses == self._said and now - self._said_at < self._timing.idle_s:
            return
        others = await hub.put(self._reports.router_id, uses)
        self._said, self._said_at = uses, now
        self._share.apply(others, time.monotonic())

    async def _report(self, hub: Hub) -> None:
        """Tell what was counted; all of it at once to a Hub that knows nothing of this router."""
        now = time.monotonic()
        if not self._reports.enabled or now - self._reported_at < self._timing.report_s:
            return
        before = self._acknowledged
        await self._tell(hub)
        if self._acknowledged == EVERYTHING != before:
            await self._tell(hub)
        self._reported_at = now

    async def _tell(self, hub: Hub) -> None:
        reply = await hub.report(self._reports.report(self._acknowledged))
        self._acknowledged = reply.acknowledged
        if reply.guard is not None:
            self._router.obey(reply.guard)
