"""Lets nobody call a worker who does not belong to its cluster.

Owns the refusal: before a message is read, of every method alike, also of those that do not exist.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from chairlift.cluster.cluster_token import ClusterToken
from chairlift.cluster.seldom import Seldom

__all__ = ["ClusterGuard"]

logger = logging.getLogger(__name__)


class ClusterGuard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Asks every call for the cluster's token."""

    def __init__(self, token: ClusterToken) -> None:
        self._token = token
        self._refused = Seldom(logger)
        self._refusal = grpc.stream_stream_rpc_method_handler(self._refuse)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any:
        """Called by grpc before anything else."""
        if self._token.admits(handler_call_details.invocation_metadata):
            return await continuation(handler_call_details)
        return self._refusal

    async def _refuse(self, _: object, context: Any) -> None:
        self._refused.warn("", f"refused a call without the cluster's token, from {context.peer()}")
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "this is for the cluster's own")
