"""Hands out the ledger of a replica that runs.

Owns how it is sent: one copy at a time, so that whoever asks cannot fill the memory, in parts, and
given up when the reader does not read. The copy is taken in a thread that asks nothing of the
engine and steps aside after each piece (``ledger_ring``): the steps go on meanwhile, and a replica
that is stuck in one tells how it got there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import grpc.aio

from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.proto import worker_pb2_grpc as pb_grpc
from chairlift.workers.ledger import Ledger

__all__ = ["LedgerServer"]

TIMEOUT_S = 60.0
PAUSE_S = 0.001
"""After each piece, which takes a fraction of that."""

if TYPE_CHECKING:
    from typing import TypeAlias

    # At run time grpc's class takes no parameters.
    _Context: TypeAlias = grpc.aio.ServicerContext[pb.LedgerRequest, pb.LedgerPart]


class LedgerServer(pb_grpc.LedgersServicer):
    """Serves ``chairlift.worker.v1.Ledgers`` for one replica."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._busy = False

    async def Read(self, request: pb.LedgerRequest, context: _Context) -> None:
        if self._busy:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "another one is being read")
        self._busy = True
        try:
            async with asyncio.timeout(TIMEOUT_S):
                for part in await asyncio.to_thread(self._ledger.parts, request.steps, PAUSE_S):
                    await context.write(pb.LedgerPart(data=part))
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "it is read too slowly")
        finally:
            self._busy = False
