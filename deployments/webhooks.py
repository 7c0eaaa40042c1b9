"""Calls to people: a JSON body to each address that wants it, tried again where that may help.

Owns the queue and the tries of each address. Whoever posts never waits, and an address that does
not answer harms nobody: what does not fit is dropped, and told. It knows nothing of the Guard.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass
from typing import NoReturn

import aiohttp

__all__ = ["CallCounts", "Pager", "Patience"]

logger = logging.getLogger(__name__)

MAX_QUEUED = 64
BUSY = (408, 429)
"""Of the statuses that blame the caller, those that another try may help with."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long one call is tried; seconds.

    Attributes:
        tries: at most.
        timeout_s: of one try.
        first_s: about as long passes before the second try, twice as long before each further one.
    """

    tries: int = 5
    timeout_s: float = 5.0
    first_s: float = 0.5


@dataclass(slots=True)
class CallCounts:
    """Calls, each counted once it is over; ``dropped``: that found no room in the queue."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0


class Pager:
    """One address; its calls arrive in order, and belong to the event loop of the first one."""

    def __init__(self, url: str, counts: CallCounts, patience: Patience | None = None) -> None:
        self._url = url
        self._counts = counts
        self._patience = patience or Patience()
        self._calls: asyncio.Queue[bytes] = asyncio.Queue(MAX_QUEUED)
        self._task: asyncio.Task[NoReturn] | None = None

    def post(self, body: bytes) -> None:
        """Have this JSON delivered; returns at once."""
        try:
            self._calls.put_nowait(body)
        except asyncio.QueueFull:
            self._counts.dropped += 1
            logger.warning("a call to %s is dropped: too many wait", self._host)
        if self._task is None:
            self._task = asyncio.create_task(self._deliver_all(), name="webhook calls")

    async def close(self) -> None:
        """Give up what waits."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def _host(self) -> str:
        """For logs: such an address may hold a secret in its path."""
        return self._url.split("/")[2].rpartition("@")[2]

    async def _deliver_all(self) -> NoReturn:
        timeout = aiohttp.ClientTimeout(total=self._patience.timeout_s)
        while True:
            body = await self._calls.get()
            # A new session each time: calls are rare, and nobody keeps a connection for so long.
            async with aiohttp.ClientSession(timeout=timeout) as session:
                fault = await self._deliver(session, body)
            if fault is None:
                self._counts.sent += 1
            else:
                self._counts.failed += 1
                logger.error("a call to %s has failed: %s", self._host, fault)

    async def _deliver(self, session: aiohttp.ClientSession, body: bytes) -> str | None:
        """Why it has failed; None if it has not."""
        pause_s, fault = self._patience.first_s, ""
        for attempt in range(self._patience.tries):
            if attempt:
                # Half of it by chance, so that many who failed together do not return together.
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
                pause_s *= 2
            try:
                status = await self._try(session, body)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                fault = type(error).__name__
                continue
            if 200 <= status < 300:
                return None
            fault = f"status {status}"
            if status < 500 and status not in BUSY:
                break
        return fault

    async def _try(self, session: aiohttp.ClientSession, body: bytes) -> int:
        headers = {"Content-Type": "application/json"}
        # Another address is for who configures this one to name.
        post = session.post(self._url, data=body, headers=headers, allow_redirects=False)
        async with post as response:
            return response.status
