"""A listening socket whose connections begin with TLS.

Owns accepting and the handshake: how long one may take, how many are under way, and what is said
of one that fails. Its own, since asyncio's server grants a minute and tells nobody who came with
plain text or a wrong certificate. What is spoken inside is the business of the protocol that it
makes for each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable

from chairlift.cluster.seldom import Seldom

__all__ = ["TlsFront"]

logger = logging.getLogger(__name__)

HANDSHAKE_S = 10.0
MAX_HANDSHAKES = 512
"""Under way at the same time; whoever comes then is hung up on."""
PAUSE_S = 0.1
"""Where nothing can be accepted, as when there are no descriptors left."""


class TlsFront:
    """Accepts until it is closed; to be closed as asyncio's server is.

    Args:
        listener: does not block.
        context: of the server's side.
        make: makes the protocol that is spoken inside.
    """

    def __init__(
        self, listener: socket.socket, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol]
    ) -> None:
        self._listener = listener
        self._context = context
        self._make = make
        self._under_way: set[asyncio.Task[None]] = set()
        self._refused = Seldom(logger)
        self._accepting = asyncio.create_task(self._accept(), name="TLS front")

    def close(self) -> None:
        """Accept no more; handshakes under way go on."""
        self._accepting.cancel()
        self._listener.close()

    async def wait_closed(self) -> None:
        """Until nothing of it is left but connections."""
        await asyncio.wait([self._accepting, *self._under_way])

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                self._refused.warn("accept", f"nothing can be accepted: {error}")
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._under_way) >= MAX_HANDSHAKES:
                self._refused.warn("full", "refused a connection: too many handshakes under way")
                connection.close()
                continue
            task = asyncio.create_task(self._shake_hands(connection), name="TLS handshake")
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _shake_hands(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # it may have gone already
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )
        except ssl.SSLError as error:
            reason = error.reason or "it is no TLS"
            self._refused.warn(reason, f"refused a TLS connection: {reason}")
        except OSError as error:  # gone, or too slow
            logger.debug("a TLS handshake ended early: %s", error)
