"""One request on its way, from its placement to its end.

Owns what arrived for each choice and was not read yet, the text state of each choice, and the
request's one ending. It knows which stream carries it, but neither members nor admission; the
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
from typing import Literal, Protocol, Self

from chairlift.cluster.errors import InternalError, ReplicaLost, RequestError
from chairlift.cluster.protocol import Delta, FinishReason, Request
from chairlift.router.detokenizer import Detokenizer
from chairlift.router.metrics import Outcome, RequestEnd, RouterMetrics
from chairlift.router.tokenizer import Tokenizer

__all__ = ["Carrier", "Finish", "Flight", "FlightSupport", "Update"]

MAX_PLACEMENTS = 3

Finish = Literal["stop", "length"]

_FINISHES: dict[FinishReason, Finish] = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


@dataclass(frozen=True, slots=True)
class Update:
    """News of one choice.

    Attributes:
        choice: its index, 0 … n - 1.
        text: what comes next; whole characters, no part of a stop string.
        num_tokens: output tokens behind this update; they add up to the choice's usage.
        finish: set in the choice's last update, and only there.
    """

    choice: int
    text: str
    num_tokens: int
    finish: Finish | None


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
    """

    def __init__(self, request: Request, stop: tuple[str, ...], support: FlightSupport) -> None:
        self.request = request
        self.placements = 0
        self.outcome: Outcome | None = None
        self._stop = stop
        self._support = support
        self._started_at = support.clock()
        self._first_token_at: float | None = None
        self._carrier: Carrier | None = None
        self._choices: list[_Choice] = []
        self._news: dict[int, _Choice] = {}
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
        self._choices = [
            _Choice(index, handle + index, Detokenizer(self._support.tokenizer, self._stop))
            for index in range(self.request.n)
        ]

    def receive(self, delta: Delta, at: float) -> None:
        """News from the replica, which arrived at ``at``."""
        choice = self._choices[delta.handle - self._choices[0].handle]
        choice.receive(delta, at)
        self._news[choice.index] = choice
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


class _Choice:
    """One choice: tokens that arrived and were not read, and the state of its text."""

    __slots__ = (
        "_arrived_at",
        "_detokenizer",
        "_end",
        "_gaps",
        "_measured_at",
        "_tokens",
        "_untold",
        "finish",
        "handle",
        "index",
        "num_tokens",
        "running",
    )

    def __init__(self, index: int, handle: int, detokenizer: Detokenizer) -> None:
        self.index = index
        self.handle = handle
        self.running = True
        """The replica still works on it."""
        self.finish: Finish | None = None
        self.num_tokens = 0
        self._detokenizer = detokenizer
        self._tokens: list[int] = []
        self._end: FinishReason | None = None
        self._untold = 0
        self._measured_at: float | None = None
        self._arrived_at = 0.0
        self._gaps = 0

    def receive(self, delta: Delta, at: float) -> None:
        self._tokens.extend(delta.tokens)
        self._arrived_at = at
        if self._measured_at is None:
            self._measured_at = at
        else:
            self._gaps += len(delta.tokens)
        if delta.finish is not None:
            self._end = delta.finish
            self.running = False

    def take(self, metrics: RouterMetrics) -> Update | None:
        """What was not read yet; None while it is no whole character and no end."""
        number, text = self._decode()
        self.num_tokens += number
        self._untold += number
        self._measure(metrics)
        if not text and self.finish is None:
            return None
        update = Update(self.index, text, self._untold, self.finish)
        self._untold = 0
        return update

    def _decode(self) -> tuple[int, str]:
        """How many tokens count, and their text; sets ``finish`` at the end of the choice."""
        tokens, self._tokens = self._tokens, []
        seen = self._detokenizer.num_tokens
        # The token that ends the sequence counts, but it is no text.
        text = self._detokenizer.feed(tokens[:-1] if self._end is FinishReason.STOP else tokens)
        if self._end in _FINISHES and not self._detokenizer.stopped:
            text += self._detokenizer.finish()
            self.finish = _FINISHES[self._end]
        if self._detokenizer.stopped:
            self.finish = "stop"
            return self._detokenizer.num_tokens - seen, text
        return len(tokens), text

    def _measure(self, metrics: RouterMetrics) -> None:
        """Time between tokens: those of one turn share the time since the turn before."""
        if self._gaps and self._measured_at is not None:
            metrics.next_tokens(self._gaps, self._arrived_at - self._measured_at)
            self._measured_at, self._gaps = self._arrived_at, 0
