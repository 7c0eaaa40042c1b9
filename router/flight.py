"""One request on its way, from its placement to its end.

Owns which choices have news, and the request's one ending; what a choice's tokens become is the
business of ``choice``. It knows which stream carries it, but neither members nor admission; the
router places it, and places it again when that replica is lost before the first token.

    receive (event loop, per delta)  ──►  choice.tokens  ──►  next turn of the reader: text, Update

Tokens become text only when the reader takes them, all news at once, so a slow reader costs no
more than its own tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from chairlift.cluster.errors import InternalError, ReplicaLost, RequestError
from chairlift.cluster.protocol import Delta, FinishReason, Request
from chairlift.router.choice import (
    Choice,
    Finish,
    Update,
    Words,
    lacks_logprobs,
    start_text,
)
from chairlift.router.metrics import Outcome, RequestEnd, RouterMetrics
from chairlift.router.tokenizer import Tokenizer

__all__ = ["Carrier", "Finish", "Flight", "FlightSupport", "Update"]

MAX_PLACEMENTS = 3


class Carrier(Protocol):
    """The stream that carries a request."""

    def cancel(self, handles: Iterable[int]) -> None: ...


@dataclass(frozen=True, slots=True)
class FlightSupport:
    """What a flight needs of its router.

    Attributes:
        place: finds a replica that accepts the flight and calls ``attach`` on it; raises
            RequestError when there is none.
        ended: told once, when the flight has ended.
    """

    tokenizer: Tokenizer
    metrics: RouterMetrics
    clock: Callable[[], float]
    place: Callable[[Flight], Awaitable[None]]
    ended: Callable[[Flight], None]


class Flight:
    """One request, read as an async iterator of lists of Updates; one reader only.

    Use it as a context manager: leaving it stops whatever is unfinished.

    Attributes:
        request: what was asked for.
        placements: replicas that accepted it, one after the other.
        outcome: None while it is open.
        cached_tokens: prompt tokens that came from the prefix cache, for the luckiest choice.
    """

    def __init__(
        self,
        request: Request,
        stop: tuple[str, ...],
        support: FlightSupport,
        *,
        continues: bool = False,
    ) -> None:
        """``continues``: the text goes on from the prompt's, rather than being an answer to it."""
        self.request = request
        self.placements = 0
        self.outcome: Outcome | None = None
        self.cached_tokens = 0
        self._support = support
        wanted = (request.sampling.logprobs, request.sampling.prompt_logprobs)
        self._scored = wanted != (None, None)
        self._words = Words(support.tokenizer, stop, continues)
        self._started_at = support.clock()
        self._first_token_at: float | None = None
        self._carrier: Carrier | None = None
        self._choices: list[Choice] = []
        self._news: dict[int, Choice] = {}
        self._lost: str | None = None
        self._error: RequestError | None = None
        self._wake = asyncio.Event()

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt)

    @property
    def output_tokens(self) -> int:
        """Tokens of all choices that were read; a stop string's last token is the last to count."""
        return sum(choice.num_tokens for choice in self._choices)

    def attach(self, carrier: Carrier, handle: int) -> None:
        """The request goes to ``carrier`` under ``handle``, and starts from its prompt."""
        self._carrier = carrier
        self._lost = None
        self._news.clear()
        self.cached_tokens = 0
        self._choices = [
            Choice(index, handle + index, start_text(self.request, self._words))
            for index in range(self.request.n)
        ]

    def receive(self, delta: Delta, at: float) -> None:
        """News from the replica, which arrived at ``at``."""
        choice = self._choices[delta.handle - self._choices[0].handle]
        if self._scored and lacks_logprobs(self.request, delta, first=choice.is_new):
            self._error = InternalError("the replica left out log probabilities")
            self._wake.set()
            return
        choice.receive(delta, at)
        self._news[choice.index] = choice
        self.cached_tokens = max(self.cached_tokens, choice.cached_tokens)
        if delta.tokens:
            self._support.metrics.generated_tokens += len(delta.tokens)
            if self._first_token_at is None:
                self._first_token_at = at
                self._support.metrics.first_token(self.prompt_tokens, at - self._started_at)
        if delta.finish is FinishReason.FAILED:
            self._error = InternalError("the replica could not compute this request")
        elif delta.finish is FinishReason.CANCELLED:
            self._error = ReplicaLost("the replica gave up this request")
        self._wake.set()

    def lose(self, reason: str) -> None:
        """The stream to the replica broke."""
        self._lost = reason
        self._wake.set()

    def cancel(self, error: RequestError | None = None) -> None:
        """End it here and at the replica; a reader that goes on gets ``error``, if any."""
        if self.outcome is None:
            self._error = error
            self._end(Outcome.CANCELLED, "abort")

    def reject(self, error: BaseException) -> None:
        """It could not be placed at all."""
        if self.outcome is not None:
            return
        if isinstance(error, RequestError):
            self._end(Outcome.REJECTED, error.code)
        elif isinstance(error, asyncio.CancelledError):
            self._end(Outcome.CANCELLED, "abort")
        else:
            self._end(Outcome.FAILED, InternalError.default_code)

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
        while self.outcome is None:
            if updates := self._take():
                return updates
            if self._error is not None:
                self._end(Outcome.FAILED, self._error.code)
            elif self._lost is not None:
                await self._recover(self._lost)
            else:
                self._wake.clear()
                await self._wake.wait()
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def _take(self) -> list[Update]:
        """Turn what arrived into text; ends the flight with the last choice's last update."""
        if not self._news:
            return []
        updates = []
        for choice in self._news.values():
            if (update := choice.take(self._support.metrics)) is not None:
                updates.append(update)
                if choice.finish is not None and choice.running and self._carrier is not None:
                    choice.running = False
                    self._carrier.cancel([choice.handle])
        self._news.clear()
        if all(choice.finish for choice in self._choices):
            cut = any(choice.finish == "length" for choice in self._choices)
            self._end(Outcome.FINISHED, "length" if cut else "stop")
        return updates

    async def _recover(self, reason: str) -> None:
        """The replica is lost: start again elsewhere if the reader cannot notice, else fail."""
        if self._first_token_at is None and self.placements < MAX_PLACEMENTS:
            try:
                await self._support.place(self)
            except asyncio.CancelledError:
                self._lost = reason  # the attempt was taken back; the next turn tries again
                raise
            except RequestError as error:
                reason = f"{reason}; {error.message}"
            else:
                self._support.metrics.resubmitted += 1
                return
        if self.outcome is None:
            self._error = ReplicaLost(f"the replica that ran this request is gone ({reason})")
            self._end(Outcome.FAILED, self._error.code)

    def _end(self, outcome: Outcome, label: str) -> None:
        """The only way out: everything is given back here, once."""
        self.outcome = outcome
        running = [choice.handle for choice in self._choices if choice.running]
        if running and self._carrier is not None:
            self._carrier.cancel(running)
        first = self._first_token_at
        self._support.metrics.end(
            RequestEnd(
                outcome=outcome,
                label=label,
                duration_s=self._support.clock() - self._started_at,
                first_token_s=None if first is None else first - self._started_at,
                output_tokens=self.output_tokens,
            )
        )
        self._support.ended(self)
        self._wake.set()
