"""The pages about the whole cluster: for people, for the page itself, and for Prometheus.

Owns what ``/dashboard``, ``/dashboard/figures`` and ``/metrics/cluster`` answer. The figures come
from the Hub (``cluster.figures``); where it does not answer, no figures are made up.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import orjson

from chairlift.cluster.errors import Unavailable
from chairlift.deployments.asgi import Exchange
from chairlift.deployments.cluster_metrics import cluster_page
from chairlift.deployments.page import Page

__all__ = ["Dashboard", "FiguresSource", "no_figures"]

FiguresSource: TypeAlias = Callable[[], Awaitable[dict[str, Any] | None]]
"""Asks the Hub for ``cluster.figures.Figures`` as a dictionary; None if it does not answer."""

_FRESH = (b"cache-control", b"no-store")


async def no_figures() -> None:
    """The source of who has no Hub."""


class Dashboard:
    """Answers for every router alike."""

    def __init__(self, source: FiguresSource) -> None:
        self._source = source
        self.page = Page("dashboard.html").show

    async def figures(self, exchange: Exchange) -> None:
        await exchange.respond(200, orjson.dumps(await self._ask()), headers=[_FRESH])

    async def metrics(self, exchange: Exchange) -> None:
        page, content_type = cluster_page(await self._ask())
        await exchange.respond(200, page, content_type=content_type)

    async def _ask(self) -> dict[str, Any]:
        figures = await self._source()
        if figures is None:
            raise Unavailable(
                "No figures: the Hub does not answer; serving goes on", code="no_figures"
            )
        return figures
