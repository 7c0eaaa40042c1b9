"""Fetches what replicas have recorded of their decisions.

Owns a connection of its own for each fetch, so that megabytes of ledger stand in no token's way on
the replica's stream. What the bytes say, only workers know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import grpc.aio

from chairlift.cluster.errors import NotFound, Overloaded, RequestError, Unavailable
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.proto import worker_pb2_grpc as pb_grpc
from chairlift.router.passport import Passport

__all__ = ["Ledgers"]

TIMEOUT_S = 30.0
RETRY_AFTER_S = 1.0
GRPC_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)


class Ledgers:
    """The ledgers of all members.

    Args:
        members: replica id → endpoint.
        passport: what they are shown.
    """

    def __init__(
        self, members: Callable[[], Mapping[str, str]], passport: Passport = Passport()
    ) -> None:
        self._members = members
        self._passport = passport

    async def fetch(self, replica_id: str, steps: int = 0) -> bytes:
        """A ledger file of what the replica has in memory.

        Args:
            replica_id: one of the members.
            steps: of the newest ones, and what it takes to replay them; 0 for all.

        Raises:
            NotFound: there is no such replica.
            Overloaded: somebody else is reading it.
            Unavailable: it records nothing, or does not answer.
        """
        endpoint = self._members().get(replica_id)
        if endpoint is None:
            raise NotFound(f"There is no replica {replica_id[:200]!r}", code="no_such_replica")
        request, parts = pb.LedgerRequest(steps=steps), []
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                self._passport.channel(endpoint, GRPC_OPTIONS) as channel,
            ):
                stub = pb_grpc.LedgersStub(channel)
                async for part in stub.Read(request, metadata=self._passport.metadata()):
                    parts.append(part.data)
        except grpc.aio.AioRpcError as error:
            raise _told(replica_id, error) from None
        except TimeoutError:
            raise Unavailable(f"{replica_id} did not send its ledger in time") from None
        return b"".join(parts)


def _told(replica_id: str, error: grpc.aio.AioRpcError) -> RequestError:
    match error.code():
        case grpc.StatusCode.UNIMPLEMENTED:
            return Unavailable(f"{replica_id} keeps no ledger", code="no_ledger")
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Overloaded(
                f"Somebody else is reading the ledger of {replica_id}",
                code="ledger_busy",
                retry_after_s=RETRY_AFTER_S,
            )
        case code:
            return Unavailable(f"{replica_id} did not send its ledger: {code.name}")
