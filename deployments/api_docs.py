"""The API's description: for programs at ``/openapi.json``, for people at ``/docs``.

Owns both answers; the description itself is made in ``deployments.openapi``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from typing import TypeAlias

import orjson

from chairlift.deployments.asgi import Exchange
from chairlift.deployments.openapi import describe
from chairlift.deployments.page import Page

__all__ = ["ApiDocs"]

Endpoint: TypeAlias = Callable[[Exchange], Awaitable[None]]


class ApiDocs:
    """Answers for every router alike."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._page = Page("api_docs.html")

    def endpoints(self) -> Mapping[str, tuple[str, Endpoint]]:
        """Path → method and endpoint."""
        return {"/docs": ("GET", self._page.show), "/openapi.json": ("GET", self._describe)}

    async def _describe(self, exchange: Exchange) -> None:
        await exchange.respond(200, await asyncio.to_thread(lambda: self._document))

    @cached_property
    def _document(self) -> bytes:
        """Made for who asks first, since it takes longer than a token may wait."""
        return orjson.dumps(describe(self._model_name))
