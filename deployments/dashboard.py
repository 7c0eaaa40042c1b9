"""The pages about the whole cluster: for people, for the page itself, and for Prometheus.

Owns what ``/dashboard``, ``/dashboard/figures`` and ``/metrics/cluster`` answer. The figures come
from the Hub (``cluster.figures``); where it does not answer, no figures are made up.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any, TypeAlias

import orjson

from chairlift.cluster.errors import Unavailable
from chairlift.deployments.asgi import Exchange
from chairlift.deployments.cluster_metrics import cluster_page

__all__ = ["Dashboard", "FiguresSource", "no_figures"]

FiguresSource: TypeAlias = Callable[[], Awaitable[dict[str, Any] | None]]
"""Asks the Hub for ``cluster.figures.Figures`` as a dictionary; None if it does not answer."""

_SCRIPT = re.compile(rb"<script>(.*)</script>", re.DOTALL)
_FRESH = (b"cache-control", b"no-store")


async def no_figures() -> None:
    """The source of who has no Hub."""


class Dashboard:
    """Answers for every router alike."""

    def __init__(self, source: FiguresSource) -> None:
        self._source = source
        page = resources.files("chairlift.deployments").joinpath("dashboard.html")
        self._page = page.read_bytes()
        self._headers = (*_protection(self._page), _FRESH)

    async def page(self, exchange: Exchange) -> None:
        await exchange.respond(
            200, self._page, content_type="text/html; charset=utf-8", headers=self._headers
        )

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


def _protection(page: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Headers that let run only the page's own script, and that talk only to this server."""
    script = _SCRIPT.search(page)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1]).digest())
    policy = (
        b"default-src 'none'; script-src 'sha256-%b'; style-src 'unsafe-inline'; img-src data:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return (
        (b"content-security-policy", policy % digest),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    )
