"""What a router shows to the replicas that it calls, and asks of them.

Owns how a connection to a replica is opened: with the cluster's token, and, where the cluster has
certificates, over TLS to whoever bears the name of workers. Where certificates come from is the
business of whoever makes a passport.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import grpc
import grpc.aio

from chairlift.cluster.cluster_token import ClusterToken

__all__ = ["WORKER_NAME", "Passport"]

WORKER_NAME = "chairlift-worker"
"""In the certificate of every worker, whichever address it listens on."""


@dataclass(frozen=True, slots=True)
class Passport:
    """One cluster's.

    Attributes:
        token: the cluster's; None where replicas ask for none.
        credentials: the newest certificate and authority, for each connection anew; may read files.
            None where replicas speak plain text.
    """

    token: ClusterToken | None = None
    credentials: Callable[[], grpc.ChannelCredentials] | None = None

    def metadata(self) -> tuple[tuple[str, str], ...] | None:
        """What each call carries."""
        return None if self.token is None else self.token.metadata()

    @contextlib.asynccontextmanager
    async def channel(
        self, endpoint: str, options: Sequence[tuple[str, int | str]]
    ) -> AsyncIterator[grpc.aio.Channel]:
        """A connection of its own to the replica at ``endpoint``."""
        if self.credentials is None:
            channel = grpc.aio.insecure_channel(endpoint, options=options)
        else:
            trust = await asyncio.to_thread(self.credentials)
            named = [*options, ("grpc.ssl_target_name_override", WORKER_NAME)]
            channel = grpc.aio.secure_channel(endpoint, trust, options=named)
        async with channel:
            yield channel
