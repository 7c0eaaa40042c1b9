"""One stream's submissions on their way to the intake.

Owns the wait for a grammar: a submission whose grammar is not compiled yet goes in when it is, and
nothing behind it waits. A cancellation that comes meanwhile follows it in. Belongs to the event
loop of the stream; grammars are compiled in a thread (``grammars``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from chairlift.cluster.protocol import Answer, Refusal, Submission
from chairlift.workers.grammars import Grammars
from chairlift.workers.intake import Intake

__all__ = ["Submitting"]

COMPILE_TIMEOUT_S = 10.0
"""The library's limits end it much sooner, but several may be compiled before."""

MAX_WAITING = 256
"""Submissions of a stream that wait for their grammars."""


class Submitting:
    """Hands over what a router asks for.

    Args:
        intake: takes it.
        origin: number of the stream.
        answer: told the intake's word on each submission.
    """

    def __init__(self, intake: Intake, origin: int, answer: Callable[[Answer], None]) -> None:
        self._intake = intake
        self._origin = origin
        self._answer = answer
        self._waiting: set[asyncio.Task[None]] = set()
        self._cancelled: set[int] = set()

    def submit(self, submission: Submission) -> None:
        """Answered at once, unless its grammar is new."""
        grammar, grammars = submission.request.sampling.grammar, self._intake.grammars
        if not grammar or grammars is None:
            self._answer(self._intake.submit(self._origin, submission))
        elif len(self._waiting) >= MAX_WAITING:
            detail = f"{MAX_WAITING} submissions wait for their grammars"
            self._answer(Answer(submission.handle, Refusal.QUEUE_FULL, detail))
        else:
            task = asyncio.create_task(self._compiled(grammars, submission))
            self._waiting.add(task)
            task.add_done_callback(self._over)

    def cancel(self, handles: Iterable[int]) -> None:
        """End these early, those that still wait as soon as they are in."""
        handles = tuple(handles)
        if self._waiting:
            self._cancelled.update(handles)
        self._intake.cancel(self._origin, handles)

    def leave(self) -> None:
        """The stream is gone."""
        for task in self._waiting:
            task.cancel()
        self._intake.leave(self._origin)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._waiting.discard(task)
        if not self._waiting:
            self._cancelled.clear()  # the rest was of others, who were in

    async def _compiled(self, grammars: Grammars, submission: Submission) -> None:
        compiled = grammars.compiled(submission.request.sampling.grammar)
        try:
            if not compiled.done():
                async with asyncio.timeout(COMPILE_TIMEOUT_S):
                    # Others may wait for the same one.
                    await asyncio.shield(asyncio.wrap_future(compiled))
            compiled.result()
        except TimeoutError:
            detail = f"grammar: not ready within {COMPILE_TIMEOUT_S:.0f} s"
            self._answer(Answer(submission.handle, Refusal.QUEUE_FULL, detail))
            return
        except ValueError as error:
            self._answer(Answer(submission.handle, Refusal.INVALID, f"grammar: {error}"))
            return
        self._answer(self._intake.submit(self._origin, submission))
        handles = range(submission.handle, submission.handle + submission.request.n)
        self._intake.cancel(self._origin, self._cancelled.intersection(handles))
        self._cancelled.difference_update(handles)
