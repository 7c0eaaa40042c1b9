"""What is still to be said to one replica.

Owns the order: a cancellation never goes out before the submission that it takes back, and Controls
go before all. It knows no connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from chairlift.cluster import wire
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import Controls, Submission
from chairlift.router.wake import Wake

__all__ = ["Outgoing"]

MAX_MESSAGE_TOKENS = 1 << 20
"""Tokens after which a message takes no further submission; keeps messages small enough for the
worker's limit, and cancellations from waiting behind megabytes."""


class Outgoing:
    """Submissions and cancellations that wait to be sent; bounded by what the router has open.

    Attributes:
        controls: the newest; None where the replica is to keep those of its configuration.
    """

    def __init__(self) -> None:
        self.controls: Controls | None = None
        self._told = True
        self._submits: deque[pb.Submit] = deque()
        self._cancels: list[int] = []
        self._wake = Wake()

    def submit(self, submission: Submission) -> None:
        self._submits.append(wire.submission_to_wire(submission))
        self._wake.wake()

    def cancel(self, handles: Iterable[int]) -> None:
        self._cancels.extend(handles)
        self._wake.wake()

    def tell(self, controls: Controls) -> None:
        """Say these in place of older ones, now and to each connection that comes."""
        self.controls, self._told = controls, False
        self._wake.wake()

    def clear(self) -> None:
        """The connection is gone, and with it whoever would have heard."""
        self._told = self.controls is None
        self._submits.clear()
        self._cancels.clear()

    async def next(self) -> pb.ToWorker:
        """Waits until there is something to say, and takes it."""
        while self._told and not (self._submits or self._cancels):
            await self._wake.sleep()
        message = pb.ToWorker()
        if self.controls is not None and not self._told:
            self._told = True
            message.controls.CopyFrom(wire.controls_to_wire(self.controls))
        tokens = 0
        while self._submits:
            tokens += _size(self._submits[0])
            if message.submits and tokens > MAX_MESSAGE_TOKENS:
                return message
            message.submits.append(self._submits.popleft())
        message.cancels.extend(self._cancels)
        self._cancels.clear()
        return message


def _size(submit: pb.Submit) -> int:
    return len(submit.prompt) + len(submit.output)
