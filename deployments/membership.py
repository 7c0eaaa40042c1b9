"""Which worker replicas exist, as Ray Serve tells it to this process.

Serve pushes membership to the request router of every deployment handle. ``MembershipRouter``
is such a request router that routes nothing: it only passes the members on to this process's
``Membership``, from which the Router deployment learns whom to open a stream to.

Serve builds the request router itself and offers no way to hand it an object of ours, and it
pickles the class by value, so the two meet in ``process_membership()``: one object a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cache

__all__ = ["Membership", "process_membership"]

Listener = Callable[[Mapping[str, str]], None]


class Membership:
    """The present members: replica id → endpoint of its rank 0 (``host:port``)."""

    def __init__(self) -> None:
        self._members: dict[str, str] = {}
        self._listener: tuple[asyncio.AbstractEventLoop, Listener] | None = None

    @property
    def members(self) -> Mapping[str, str]:
        """The newest ones that are known."""
        return self._members

    def publish(self, members: Mapping[str, str]) -> None:
        """Replace the members; any thread."""
        self._members = dict(members)
        if self._listener is not None:
            loop, listener = self._listener
            loop.call_soon_threadsafe(listener, self._members)

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` in the running loop, now and at every change."""
        self._listener = (asyncio.get_running_loop(), listener)
        listener(self._members)


@cache
def process_membership() -> Membership:
    """This process's only Membership."""
    return Membership()
