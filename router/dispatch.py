"""Who waits for which handle on one stream, and what the replica at its other end reports.

Owns the table from handles to listeners and the latest load; it is fed with messages and knows
no connection. A handle is pending until its request is answered, open until its last delta.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from chairlift.cluster import wire, wire_frame
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import Answer, Delta, LoadReport, Submission
from chairlift.router.sent import SentLedger, Speed

__all__ = ["Dispatch", "Listener", "StreamLost"]


class StreamLost(Exception):
    """The stream broke, or is not up, so a submission has no answer."""


class Listener(Protocol):
    """Who is told what happens to a handle; called in the event loop, must be quick."""

    def receive(self, delta: Delta, at: float) -> None:
        """News of one handle, which arrived at ``at``."""

    def lose(self, reason: str) -> None:
        """The stream broke; nothing more comes for any handle."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A submission without an answer."""

    submission: Submission
    listener: Listener
    answer: asyncio.Future[Answer]

    def give_up(self, reason: str) -> None:
        if not self.answer.done():
            self.answer.set_exception(StreamLost(reason))


class Dispatch:
    """One connection's handles and load; a new connection starts with a new one.

    Attributes:
        load, load_at: the latest report, and when it arrived.
        sent: what was submitted and is in no report yet.
        speed: measured from the reports.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.load: LoadReport | None = None
        self.load_at = 0.0
        self.sent = SentLedger()
        self.speed = Speed()
        self._clock = clock
        self._pending: dict[int, _Pending] = {}
        self._open: dict[int, Listener] = {}

    @property
    def num_open(self) -> int:
        """Handles that have a listener or wait for an answer."""
        return len(self._open) + sum(p.submission.request.n for p in self._pending.values())

    def expect(self, submission: Submission, listener: Listener) -> asyncio.Future[Answer]:
        """The answer that is to come; ``listener`` hears of the handles if it is yes."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._pending[submission.handle] = _Pending(submission, listener, answer)
        self.sent.add(submission)
        return answer

    def forget(self, handles: Iterable[int]) -> None:
        """Nobody wants to hear of these any more."""
        for handle in handles:
            self._open.pop(handle, None)
            self.sent.remove(handle)
            if entry := self._pending.pop(handle, None):
                entry.give_up("the request was cancelled")

    def receive(self, message: pb.FromWorker) -> None:
        """Hand out what a message holds; raises ValueError for a malformed one."""
        now = self._clock()
        frame = wire_frame.frame_from_wire(message.frame) if message.HasField("frame") else None
        if frame is not None:
            self.load, self.load_at = frame.load, now
            self.speed.observe(frame.load, now)
            self.sent.observe(frame.load)
        for answer in message.answers:
            self._take_answer(wire.answer_from_wire(answer))
        for delta in frame.deltas if frame is not None else ():
            listener = self._open.get(delta.handle)
            if listener is None:
                continue  # it was cancelled while this was on its way
            self.sent.remove(delta.handle)
            if delta.finish is not None:
                del self._open[delta.handle]
            listener.receive(delta, now)

    def lose(self, reason: str) -> None:
        """The connection is gone: tell everybody."""
        pending, self._pending = self._pending, {}
        listeners, self._open = set(self._open.values()), {}
        for entry in pending.values():
            entry.give_up(reason)
        for listener in listeners:
            listener.lose(reason)

    def _take_answer(self, answer: Answer) -> None:
        pending = self._pending.pop(answer.handle, None)
        if pending is None:
            return  # it was cancelled while this was on its way
        if answer.refusal is None:
            self.sent.accept(answer.handle, 0 if self.load is None else self.load.step)
            for choice in range(pending.submission.request.n):
                self._open[answer.handle + choice] = pending.listener
        else:
            self.sent.remove(answer.handle)
        if not pending.answer.done():
            pending.answer.set_result(answer)
