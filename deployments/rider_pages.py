"""What replicas have decided: their ledgers for operators, and who sat where for everybody.

Owns what ``/dashboard/riders`` and ``/replicas/ID/ledger`` answer. A ledger holds the tokens of
prompts, so it is for who may act by hand; the picture of the riders names tenants and loads, as the
dashboard does.

The picture is made by a process that ends with it (``workers.riders`` tells why), for one replica
at a time, and serves all who ask within the next seconds: at worst one core is busy with it, at the
lowest priority, while somebody looks.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import chairlift
from chairlift.cluster.errors import InvalidRequest, Unavailable
from chairlift.deployments.asgi import Exchange

__all__ = ["LEDGERS_PREFIX", "LEDGERS_SUFFIX", "FetchLedger", "RiderPages"]

FetchLedger: TypeAlias = Callable[[str, int], Awaitable[bytes]]
"""Asked with the id of a replica and a number of steps, 0 for all (``router.ledgers``)."""

LEDGERS_PREFIX, LEDGERS_SUFFIX = "/replicas/", "/ledger"
STEPS = 240
KEEP_S = 3.0
TIMEOUT_S = 20.0
_FRESH = (b"cache-control", b"no-store")
_ROOT = Path(chairlift.__file__).parents[1]


class RiderPages:
    """Answers for every replica.

    Args:
        fetch: brings a ledger.
        check: raises a RequestError unless who asks may have prompts.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        fetch: FetchLedger,
        check: Callable[[Exchange], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch = fetch
        self._check = check
        self._clock = clock
        self._made: dict[str, tuple[float, bytes]] = {}
        self._making: asyncio.Task[bytes] | None = None

    async def ledger(self, exchange: Exchange) -> None:
        self._check(exchange)
        replica_id = exchange.path.removeprefix(LEDGERS_PREFIX).removesuffix(LEDGERS_SUFFIX)
        content = await self._fetch(replica_id, 0)
        await exchange.respond(
            200, content, content_type="application/octet-stream", headers=[_FRESH]
        )

    async def riders(self, exchange: Exchange) -> None:
        replica_id = exchange.query("replica")
        if not replica_id:
            raise InvalidRequest("Say which replica: ?replica=ID", param="replica")
        await exchange.respond(200, await self._picture(replica_id), headers=[_FRESH])

    async def _picture(self, replica_id: str) -> bytes:
        while (picture := self._fresh(replica_id)) is None and self._making is not None:
            await asyncio.wait([self._making])
        if picture is not None:
            return picture
        self._making = making = asyncio.create_task(self._make(replica_id), name="riders")
        # Who leaves lets it be finished, for others may wait for it; then nobody hears of a fault.
        making.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(making)

    def _fresh(self, replica_id: str) -> bytes | None:
        made = self._made.get(replica_id)
        return made[1] if made is not None and self._clock() < made[0] + KEEP_S else None

    async def _make(self, replica_id: str) -> bytes:
        try:
            content = await self._fetch(replica_id, STEPS)
            picture = await asyncio.to_thread(_draw, content)
            self._made = {each: made for each, made in self._made.items() if self._fresh(each)}
            self._made[replica_id] = self._clock(), picture
            return picture
        finally:
            self._making = None


def _draw(ledger: bytes) -> bytes:
    command = [sys.executable, "-m", "chairlift.workers.riders", str(STEPS)]
    try:
        done = subprocess.run(
            command, input=ledger, capture_output=True, cwd=_ROOT, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"The picture could not be made: {type(error).__name__}") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason was given"]
        raise Unavailable(f"No picture: {said[-1]}", code="no_picture")
    return done.stdout
