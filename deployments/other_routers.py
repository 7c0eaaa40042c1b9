"""The other routers of the service, asked to end what a tenant calls by a name.

Owns that all of them are asked at the same time, how long that may take, and how many such rounds
there may be at once, for whoever has a key can ask for one. It knows no Ray: how they are reached
is its maker's business, and whose a request is that of each router's ``generations``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from chairlift.cluster.errors import Overloaded, Unavailable
from chairlift.cluster.seldom import Seldom

__all__ = ["AskAll", "OtherRouters"]

logger = logging.getLogger(__name__)

AskAll: TypeAlias = Callable[[str, str], Awaitable[Sequence[int | BaseException]]]
"""A tenant's name and a request's id → how many each router has ended, or why it did not say."""

ANSWER_S = 2.0
MAX_ROUNDS = 16
MAX_WAITING = 256
RETRY_AFTER_S = 1.0


class OtherRouters:
    """As one router sees them; belongs to its event loop."""

    def __init__(self, ask: AskAll, answer_s: float = ANSWER_S) -> None:
        self._ask = ask
        self._answer_s = answer_s
        self._rounds = asyncio.Semaphore(MAX_ROUNDS)
        self._open = 0
        self._silent = Seldom(logger)

    async def abort(self, tenant: str, request_id: str) -> int:
        """End what the tenant calls so at all others; returns how many there were.

        Raises:
            Overloaded: too many ask for that.
            Unavailable: nothing was found, but some routers did not answer.
        """
        if self._open >= MAX_WAITING:
            raise Overloaded(
                "too many requests are being aborted",
                code="too_many_aborts",
                retry_after_s=RETRY_AFTER_S,
            )
        self._open += 1
        try:
            async with self._rounds:
                answers = await self._answers(tenant, request_id)
        finally:
            self._open -= 1
        ended = sum(each for each in answers if isinstance(each, int))
        if not ended and any(isinstance(each, BaseException) for each in answers):
            raise Unavailable(
                "not every router answered; it may still be under way",
                code="routers_silent",
                retry_after_s=RETRY_AFTER_S,
            )
        return ended

    async def _answers(self, tenant: str, request_id: str) -> Sequence[int | BaseException]:
        try:
            async with asyncio.timeout(self._answer_s):
                return await self._ask(tenant, request_id)
        except Exception as error:  # whatever ails the way to them
            self._silent.warn("", f"other routers could not be asked to abort: {error!r}")
            return [error]
