"""``chairlift ledger --url``: the ledger of a replica that runs, fetched through any router.

Owns the way to it over HTTP and the choice of the replica; who may have it, the router decides.
"""

from __future__ import annotations

import asyncio

import aiohttp

from chairlift.cluster.errors import ConfigError, LedgerError
from chairlift.deployments.chat import printable
from chairlift.evaluation.openai_stream import ServerFault, read_error, unusable
from chairlift.evaluation.target_server import Server

__all__ = ["fetch_ledger"]

TIMEOUT_S = 60.0


def fetch_ledger(server: Server, replica_id: str | None) -> bytes:
    """A ledger file.

    Raises:
        ConfigError: it must be said which replica.
        LedgerError: there is no server, no such replica, or it does not hand out its ledger.
    """
    try:
        return asyncio.run(_fetch(server, replica_id))
    except (aiohttp.ClientError, OSError, ServerFault) as error:
        raise LedgerError(printable(unusable(server.root, error))) from None


async def _fetch(server: Server, replica_id: str | None) -> bytes:
    base = server.root
    async with server.session(TIMEOUT_S) as session:
        if replica_id is None:
            replica_id = await _only_one(session, base)
        async with session.get(f"{base}/replicas/{replica_id}/ledger") as response:
            if response.status != 200:
                raise await read_error(response)
            return await response.read()


async def _only_one(session: aiohttp.ClientSession, base: str) -> str:
    async with session.get(f"{base}/health") as response:
        try:
            ids = [str(each["id"]) for each in (await response.json())["replicas"] if each["live"]]
        except (ValueError, LookupError, TypeError, aiohttp.ContentTypeError):
            raise ServerFault("bad_answer", "its /health names no replicas") from None
    if len(ids) == 1:
        return ids[0]
    if not ids:
        raise ServerFault("no_replica", "no replica is live")
    raise ConfigError(f"--replica: say which one: {printable(', '.join(ids))}")
