"""A router's talk with the Hub: what its tenants have used, and what they have used elsewhere.

Owns when to talk, and that a Hub that is slow, dead or starting anew never harms the router, which
then goes on with what it knows. It knows no Ray (``deployments.hub``), and nothing of what the
numbers mean (``router.shared_use``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeAlias

from chairlift.cluster.exchange import TenantUse

__all__ = ["HubGone", "HubLink", "LinkTiming", "Put"]

logger = logging.getLogger(__name__)

Uses: TypeAlias = Mapping[str, TenantUse]
Put: TypeAlias = Callable[[str, Uses], Awaitable[Uses]]
"""Tell the Hub one router's uses; returns those of all others. Raises HubGone."""


class HubGone(Exception):
    """The Hub has ended for good; another one has to be found or made."""


class Share(Protocol):
    """What is needed of ``router.shared_use.SharedUse``."""

    def uses(self, now: float, /) -> Uses: ...

    def apply(self, others: Uses, now: float, /) -> None: ...


@dataclass(frozen=True, slots=True)
class LinkTiming:
    """Seconds: between talks while there is news, without any, for an answer, after failures."""

    busy_s: float = 0.2
    idle_s: float = 2.0
    answer_s: float = 10.0
    max_backoff_s: float = 10.0


class HubLink:
    """Keeps one router and the Hub in touch, as long as ``run`` runs."""

    def __init__(
        self,
        router_id: str,
        share: Share,
        connect: Callable[[], Awaitable[Put]],
        timing: LinkTiming | None = None,
    ) -> None:
        self._router_id = router_id
        self._share = share
        self._connect = connect
        self._timing = timing or LinkTiming()
        self._put: Put | None = None
        self._said: Uses | None = None
        self._said_at = 0.0
        self._failures = 0

    async def run(self) -> NoReturn:
        """Until it is cancelled, by who then is the only router."""
        try:
            while True:
                await self._turn()
                backoff = self._timing.busy_s * 2 ** min(self._failures, 16)
                await asyncio.sleep(min(backoff, self._timing.max_backoff_s))
        finally:
            self._share.apply({}, time.monotonic())

    async def _turn(self) -> None:
        now = time.monotonic()
        uses = self._share.uses(now)
        if uses == self._said and now - self._said_at < self._timing.idle_s:
            return
        try:
            async with asyncio.timeout(self._timing.answer_s):
                if self._put is None:
                    self._put = await self._connect()
                others = await self._put(self._router_id, uses)
        except Exception as error:  # whatever ails the Hub, the router goes on
            if isinstance(error, HubGone):
                self._put = None
            if not self._failures:
                logger.warning("the Hub does not answer, each router decides alone: %r", error)
            self._failures += 1
            return
        if self._failures:
            logger.info("the Hub answers again")
        self._failures = 0
        self._said, self._said_at = uses, now
        self._share.apply(others, time.monotonic())
