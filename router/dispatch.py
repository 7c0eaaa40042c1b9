"""Who waits for which handle on one stream, and what the replica at its other end reports.

Owns the table from handles to listeners, the latest load, and what is known of the prefix cache;
it is fed with messages and knows no connection. A handle is pending until its submission is
answered, open until its last delta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from chairlift.cluster import wire, wire_frame
from chairlift.cluster.proto import worker_pb2 as pb
from chairlift.cluster.protocol import Answer, Delta, LoadReport, Refusal, Submission
from chairlift.router.prefix_index import PrefixIndex
from chairlift.router.sent import SentLedger, Speed, Unstarted

__all__ = ["Dispatch", "Listener"]


class Listener(Protocol):
    """Who is told what becomes of a submission; called in the event loop, must be quick."""

    def answered(self, answer: Answer) -> None:
        """The replica's word; after a refusal nothing more comes."""

    def receive(self, delta: Delta, at: float) -> None:
        """News of one handle, which arrived at ``at``."""

    def lose(self, reason: str) -> None:
        """The replica is gone or out of reach; nothing more comes for any handle."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """A submission without an answer."""

    submission: Submission
    listener: Listener


class Dispatch:
    """One connection's handles and load; a new connection starts with a new one.

    Attributes:
        load, load_at: the latest report that said something new, and when it arrived.
        full: it refused a submission for want of room, and has reported nothing since.
        leaving: it takes no submissions any more.
        sent: what was submitted and is in no report yet.
        unstarted: what has no token yet.
        speed: measured from the reports.
        index: what its prefix cache holds.
        news: grows with all that changes any of these, but for the index.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.load: LoadReport | None = None
        self.load_at = 0.0
        self.full = False
        self.leaving = False
        self.sent = SentLedger()
        self.unstarted = Unstarted()
        self.speed = Speed()
        self.index = PrefixIndex()
        self.news = 0
        self._clock = clock
        self._pending: dict[int, _Pending] = {}
        self._open: dict[int, Listener] = {}

    @property
    def num_open(self) -> int:
        """Handles that have a listener or wait for an answer."""
        return len(self._open) + sum(p.submission.request.n for p in self._pending.values())

    def expect(self, submission: Submission, listener: Listener) -> None:
        """An answer is to come; ``listener`` hears it, and of the handles if it is yes."""
        self.news += 1
        self._pending[submission.handle] = _Pending(submission, listener)
        self.sent.add(submission)
        self.unstarted.add(submission)

    def forget(self, handles: Iterable[int]) -> None:
        """Nobody wants to hear of these any more."""
        self.news += 1
        for handle in handles:
            self._open.pop(handle, None)
            self._pending.pop(handle, None)
            self.sent.remove(handle)
            self.unstarted.remove(handle)

    def receive(self, message: pb.FromWorker) -> None:
        """Hand out what a message holds; raises ValueError for a malformed one."""
        self.news += 1
        now = self._clock()
        frame = wire_frame.frame_from_wire(message.frame) if message.HasField("frame") else None
        if frame is not None:
            self._observe(frame.load, now)
            if frame.blocks is not None:
                self.index.apply(frame.blocks)
        for answer in message.answers:
            self._take_answer(wire.answer_from_wire(answer))
        for delta in frame.deltas if frame is not None else ():
            listener = self._open.get(delta.handle)
            if listener is None:
                continue  # it was cancelled while this was on its way
            if delta.handle in self.unstarted.handles:
                self.sent.remove(delta.handle)
                self.unstarted.remove(delta.handle)
            if delta.finish is not None:
                del self._open[delta.handle]
            listener.receive(delta, now)

    def lose(self, reason: str) -> list[int]:
        """Nothing more is expected: tell everybody; returns the handles that were open."""
        self.news += 1
        pending, self._pending = self._pending, {}
        listeners, self._open = self._open, {}
        self.unstarted = Unstarted()
        for entry in pending.values():
            self.sent.remove(entry.submission.handle)
            entry.listener.lose(reason)
        for listener in dict.fromkeys(listeners.values()):
            listener.lose(reason)
        handles = [
            entry.submission.handle + choice
            for entry in pending.values()
            for choice in range(entry.submission.request.n)
        ]
        return handles + list(listeners)

    def _observe(self, load: LoadReport, now: float) -> None:
        """Take in a report; one that was made before the last one, or with it, says nothing."""
        if self.load is not None and load.stamp <= self.load.stamp:
            return
        self.load, self.load_at, self.full = load, now, False
        self.leaving |= load.draining
        self.speed.observe(load, now)
        self.sent.observe(load)

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
            for choice in range(pending.submission.request.n):
                self.unstarted.remove(answer.handle + choice)
            self.full |= answer.refusal is Refusal.QUEUE_FULL
            self.leaving |= answer.refusal is Refusal.DRAINING
        pending.listener.answered(answer)
