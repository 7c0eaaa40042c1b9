"""The generations that came by gRPC: started, found by name to be ended, and counted.

Owns which of them are under way at this router, and that those at others are found as well. It
knows no messages.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

from chairlift.cluster.errors import Aborted, RequestError
from chairlift.cluster.tenants import Tenant
from chairlift.deployments.fan_in import Flights, take_off
from chairlift.deployments.front import Front
from chairlift.deployments.openai_convert import Generation
from chairlift.deployments.openai_response import Api
from chairlift.deployments.request_terms import Caller

__all__ = ["Elsewhere", "Generations", "nowhere_else"]

Elsewhere: TypeAlias = Callable[[str, str], Awaitable[int]]
"""As ``other_routers.OtherRouters.abort``."""


async def nowhere_else(tenant: str, request_id: str) -> int:
    """For a router that is alone."""
    return 0


class Generations:
    """All of one router's.

    Attributes:
        none_open: set while none is under way.
    """

    def __init__(self, front: Front, elsewhere: Elsewhere = nowhere_else) -> None:
        self._front = front
        self._elsewhere = elsewhere
        self._scopes: dict[tuple[str, str], set[asyncio.Timeout]] = {}
        self.none_open = asyncio.Event()
        self.none_open.set()

    @contextlib.asynccontextmanager
    async def run(
        self, api: Api, fields: dict[str, Any], caller: Caller, size: int
    ) -> AsyncIterator[tuple[Generation, Flights]]:
        """A generation that replicas have taken; on leaving, whatever of it goes on is cancelled.

        Args:
            api: the endpoint of HTTP that takes the same.
            fields: of that endpoint's body.
            caller: in whose name; ``abort`` finds it by the request's id.
            size: of the message, in bytes.

        Raises:
            RequestError: it is wrong, or turned away; Aborted where ``abort`` has ended it.
        """
        converter = self._front.converter
        convert = converter.chat if api is Api.CHAT else converter.completion
        async with self._abortable((caller.tenant.name, caller.request_id)):
            generation = await self._front.convert(convert, fields, caller, size=size)
            del fields  # megabytes, perhaps, that the tokens need not wait with
            async with take_off(self._front.router, generation) as flights:
                yield generation, flights

    async def abort(self, tenant: Tenant, request_id: str) -> int:
        """End what the tenant calls so, at whichever router; returns how many there were.

        Raises Overloaded, Unavailable: other routers could not be asked, and nothing was found.
        """
        here = self.abort_here(tenant.name, request_id)
        try:
            return here + await self._elsewhere(tenant.name, request_id)
        except RequestError:
            if here:
                return here
            raise

    def abort_here(self, tenant: str, request_id: str) -> int:
        """End what the tenant of that name calls so at this router; returns how many there were."""
        scopes = self._scopes.get((tenant, request_id), set())
        now = asyncio.get_running_loop().time()
        for scope in scopes:
            scope.reschedule(now)
        return len(scopes)

    @contextlib.asynccontextmanager
    async def _abortable(self, name: tuple[str, str]) -> AsyncIterator[None]:
        try:
            # A timeout without a time is the standard library's scope for cancelling.
            async with asyncio.timeout(None) as scope:
                self._scopes.setdefault(name, set()).add(scope)
                self.none_open.clear()
                try:
                    yield
                finally:
                    self._forget(name, scope)
        except TimeoutError:
            if scope.expired():
                raise Aborted("the request was aborted") from None
            raise

    def _forget(self, name: tuple[str, str], scope: asyncio.Timeout) -> None:
        self._scopes[name].discard(scope)
        if not self._scopes[name]:
            del self._scopes[name]
        if not self._scopes:
            self.none_open.set()
