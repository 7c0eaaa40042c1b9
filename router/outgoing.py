"""What is still to be said to one replica.

Owns the order: a cancellation never goes out before the submission that it takes back. It knows
no connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from chairlift.cluster import wire
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import Submission
from chairlift.router.wake import Wake

__all__ = ["Outgoing"]

MAX_MESSAGE_TOKENS = 1 << 20
"""Tokens after which a message takes no further submission; keeps messages small enough for the
worker's limit, and cancellations from waiting behind megabytes."""


class Outgoing:
    """Submissions and cancellations that wait to be sent; bounded by what the router has open."""

    def __init__(self) -> None:
        self._submits: deque[pb.Submit] = deque()
        self._cancels: list[int] = []
        self._wake = Wake()

    def submit(self, submission: Submission) -> None:
        self._submits.append(wire.submission_to_wire(submission))
        self._wake.wake()

    def cancel(self, handles: Iterable[int]) -> None:
        self._cancels.extend(handles)
        self._wake.wake()

    def clear(self) -> None:
        """The connection is gone, and with it whoever would have heard."""
        self._submits.clear()
        self._cancels.clear()

    async def next(self) -> pb.ToWorker:
        """Waits until there is something to say, and takes it."""
        while not (self._submits or self._cancels):
            await self._wake.sleep()
        submits, tokens = [self._submits.popleft()] if self._submits else [], 0
        while self._submits:
            tokens += _size(submits[-1])
            if tokens + _size(self._submits[0]) > MAX_MESSAGE_TOKENS:
                return pb.ToWorker(submits=submits)
            submits.append(self._submits.popleft())
        cancels, self._cancels = self._cancels, []
        return pb.ToWorker(submits=submits, cancels=cancels)


def _size(submit: pb.Submit) -> int:
    return len(submit.prompt) + len(submit.output)
