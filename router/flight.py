"""One request on its way, from its submission to its end.

Owns which choices have news, and the request's one ending; what a choice's tokens become is the
business of ``choice``, where they run that of the router, which moves them from replica to
replica without a reader noticing.

    receive (event loop, per delta)  ──►  choice.tokens  ──►  next turn of the reader: text, Update

Tokens become text only when the reader takes them, all news at once, so a slow reader costs no
more than its own tokens.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from chairlift.cluster.errors import InternalError, RequestError
from chairlift.cluster.protocol import Delta
from chairlift.router.ask import Ask
from chairlift.router.choice import (
    Choice,
    Finish,
    Update,
    Words,
    lacks_logprobs,
    start_text,
)
from chairlift.router.journey import Journey
from chairlift.router.metrics import Outcome
from chairlift.router.recorder import Recorder
from chairlift.router.ticket import Ticket
from chairlift.router.tokenizer import Tokenizer
from chairlift.router.wake import Wake

__all__ = ["Finish", "Flight", "FlightSupport", "Update"]


@dataclass(frozen=True, slots=True)
class FlightSupport:
    """What a flight needs of its router.

    Attributes:
        ended: told once, when the flight has ended.
    """

    tokenizer: Tokenizer
    recorder: Recorder
    clock: Callable[[], float]
    ended: Callable[[Flight], None]


class Flight:
    """One request, read as an async iterator of lists of Updates; one reader only.

    Use it as a context manager: leaving it stops whatever is unfinished.

    Attributes:
        ask: what was asked for, and on what terms.
        request: the first part of it.
        prompt_tokens: of that.
        choices: in order.
        expires_at: when the first token must have come, by the router's clock.
        losses: of replicas that ran it, in order; what for is the router's business.
        first_token_at: None while none has come.
        outcome: None while it is open.
        journey: its trace; None where it is not recorded.
        cached_tokens: prompt tokens that came from the prefix cache, for the luckiest choice.
        record: is told of all that is measured.
    """

    def __init__(
        self,
        ask: Ask,
        deadline_s: float,
        support: FlightSupport,
        journey: Journey | None = None,
    ) -> None:
        self.ask = ask
        self.request = ask.request
        self.prompt_tokens = len(ask.request.prompt)
        self.losses: dict[tuple[object, str], None] = {}
        self.first_token_at: float | None = None
        self.outcome: Outcome | None = None
        self.cached_tokens = 0
        self.journey = journey
        self._support = support
        self._started_at = support.clock()
        self.expires_at = self._started_at + deadline_s
        self.record = support.recorder.start(ask.request, self._started_at)
        self._placed = False
        sampling = ask.request.sampling
        self._scored = sampling.logprobs is not None or sampling.prompt_logprobs is not None
        self._news: dict[int, Choice] = {}
        self._error: RequestError | None = None
        self._wake = Wake()
        words = Words(support.tokenizer, ask.stop, ask.continues)
        self.choices = [
            Choice(index, start_text(ask.request, words)) for index in range(ask.request.n)
        ]

    @property
    def output_tokens(self) -> int:
        """Tokens of all choices that were read; a stop string's last token is the last to count."""
        return sum(choice.num_tokens for choice in self.choices)

    def first_ticket(self) -> Ticket:
        """All choices together, from the begin; to be asked for once."""
        ticket = Ticket(self, self.request, self._started_at, self.expires_at)
        for choice in self.choices:
            choice.place = ticket
        return ticket

    def next_ticket(self, index: int, now: float) -> Ticket | None:
        """One choice, to go on after what has come of it; None when nobody wants more of it."""
        choice = self.choices[index]
        if self.outcome is not None or not choice.goes_on:
            return None
        ticket = Ticket(
            self,
            self.request if self.request.n == 1 else replace(self.request, n=1),
            queued_at=now,
            # What has begun is not turned away for its deadline.
            expires_at=self.expires_at if self.first_token_at is None else math.inf,
            choice=index,
            output=tuple(choice.output),
            under_way=True,
        )
        choice.place = ticket
        return ticket

    def accept(self) -> None:
        """A replica has accepted it."""
        self._placed = True
        self._wake.wake()

    async def placed(self) -> None:
        """Until a replica has accepted it; raises the RequestError that it was turned away with.

        Cancelling this call cancels the request.
        """
        try:
            while not self._placed and self.outcome is None:
                await self._wake.sleep()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if not self._placed and self._error is not None:
            raise self._error

    def receive(self, index: int, delta: Delta, at: float) -> None:
        """News of one choice, which arrived at ``at``; its end only if it is a real one."""
        choice = self.choices[index]
        if self._scored and lacks_logprobs(self.request, delta, first=choice.is_new):
            self.fail(InternalError("the replica left out log probabilities"))
            return
        choice.receive(delta, at)
        self._news[index] = choice
        if delta.cached_tokens:
            self.cached_tokens = max(self.cached_tokens, choice.cached_tokens)
        if delta.tokens:
            if self.first_token_at is None:
                self.first_token_at = at
                self.record.first_token(at, self.cached_tokens)
            number = len(delta.tokens)
            self.record.tokens(number, len(choice.output) - number, at)
        self._wake.wake()

    def fail(self, error: RequestError) -> None:
        """End it here and at the replicas; the reader gets what has come, then ``error``."""
        if self.outcome is None:
            self._error = error
            self._end(Outcome.FAILED if self._placed else Outcome.REJECTED, error.code)

    def cancel(self, error: RequestError | None = None) -> None:
        """End it here and at the replicas; a reader that goes on gets ``error``, if any."""
        if self.outcome is None:
            self._error = error
            self._news.clear()
            self._end(Outcome.CANCELLED, "abort")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Update]:
        """All news since the last turn, at least one update; RequestError when it failed."""
        while True:
            if updates := self._take():
                return updates
            if self._error is not None:
                raise self._error
            if self.outcome is not None:
                raise StopAsyncIteration
            await self._wake.sleep()

    def _take(self) -> list[Update]:
        """Turn what arrived into text; ends the flight with the last choice's last update."""
        if not self._news:
            return []
        updates, ended = [], False
        for choice in self._news.values():
            if (update := choice.take(self.record)) is not None:
                updates.append(update)
                if update.finish is not None:
                    choice.give_up()
                    ended = True
        self._news.clear()
        if ended and self.outcome is None and all(choice.finish for choice in self.choices):
            cut = any(choice.finish == "length" for choice in self.choices)
            self._end(Outcome.FINISHED, "length" if cut else "stop")
        return updates

    def _end(self, outcome: Outcome, label: str) -> None:
        """The only way out: everything is given back here, once."""
        self.outcome = outcome
        for choice in self.choices:
            choice.give_up()
        lengths = [choice.num_tokens for choice in self.choices]
        now = self._support.clock()
        self.record.end(outcome, label, now, lengths)
        if self.journey is not None:
            self.journey.end(self, outcome, label, now)
        self._support.ended(self)
        self._wake.wake()
