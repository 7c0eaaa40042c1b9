"""Which worker replicas exist, as Ray Serve tells it to this process.

Serve pushes membership to the request router of every deployment handle. ``MembershipRouter``
is such a request router that routes nothing: it only passes the members on to this process's
``Membership``, from which the Router deployment learns whom to open a stream to.

Routers and workers of two configurations live side by side while one takes the other's place. A
replica of another model, or of another number of ranks, would go on with other tokens; so a router
has those for members that are of its own kind.

Serve builds the request router itself and offers no way to hand it an object of ours, and it
pickles the class by value, so the two meet in ``process_membership()``: one object a process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from chairlift.cluster.config import ServiceConfig

__all__ = ["Member", "Membership", "kind_of", "process_membership"]

Listener = Callable[[Mapping[str, str]], None]


def kind_of(config: ServiceConfig) -> str:
    """What replicas have in common between which a request may move."""
    return f"{config.model.path} in {config.workers.tensor_parallel}"


@dataclass(frozen=True, slots=True)
class Member:
    """A replica as it presents itself: where its rank 0 listens, and ``kind_of`` it."""

    endpoint: str
    kind: str


class Membership:
    """The present members: replica id → endpoint of its rank 0 (``host:port``)."""

    def __init__(self) -> None:
        self._replicas: dict[str, Member] = {}
        self._kind: str | None = None
        self._listener: tuple[asyncio.AbstractEventLoop, Listener] | None = None

    @property
    def members(self) -> Mapping[str, str]:
        """The newest ones that are known; none before ``listen``."""
        return {
            name: replica.endpoint
            for name, replica in self._replicas.items()
            if replica.kind == self._kind
        }

    def publish(self, replicas: Mapping[str, Member]) -> None:
        """Replace all that there are; any thread."""
        self._replicas = dict(replicas)
        if self._listener is not None:
            loop, listener = self._listener
            loop.call_soon_threadsafe(listener, self.members)

    def listen(self, kind: str, listener: Listener) -> None:
        """Call ``listener`` in the running loop with those of a kind, now and at every change."""
        self._kind = kind
        self._listener = (asyncio.get_running_loop(), listener)
        listener(self.members)


@cache
def process_membership() -> Membership:
    """This process's only Membership."""
    return Membership()
