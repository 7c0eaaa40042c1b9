"""One choice of a request: tokens that arrived, and what its reader is told of them.

Owns its tokens and the state of its text. It knows where it runs, but neither streams nor the
other choices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from chairlift.cluster.protocol import Delta, FinishReason, Request, TokenLogprobs
from chairlift.router.detokenizer import Detokenizer
from chairlift.router.record import Record
from chairlift.router.scored_text import ScoredText, ScoredToken
from chairlift.router.tokenizer import Tokenizer

__all__ = ["Choice", "Finish", "Place", "Update", "Words", "lacks_logprobs", "start_text"]

Finish = Literal["stop", "length"]

_FINISHES: dict[FinishReason, Finish] = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}


class Update(NamedTuple):
    """News of one choice; a tuple, for one is made per token.

    Attributes:
        choice: its index, 0 … n - 1.
        text: what comes next; whole characters, no part of a stop string.
        num_tokens: output tokens behind this update; they add up to the choice's usage.
        finish: set in the choice's last update, and only there.
        tokens: those whose text has now been told, if log probabilities were asked for; all
            updates' together are the choice's. Where the text was cut, the tokens behind the cut
            are missing.
        prompt_logprobs: of each prompt token but the first, if asked for; in the first update.
    """

    choice: int
    text: str
    num_tokens: int
    finish: Finish | None
    tokens: tuple[ScoredToken, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Words:
    """How a request's tokens become text.

    Attributes:
        stop: texts that end a choice before them.
        continues: the text goes on from the prompt's, rather than being an answer to it.
    """

    tokenizer: Tokenizer
    stop: tuple[str, ...]
    continues: bool


def start_text(request: Request, words: Words) -> Detokenizer | ScoredText:
    """The empty text of one choice."""
    has_text = words.tokenizer.token_bytes
    text = Detokenizer(
        words.tokenizer,
        words.stop,
        min_tokens=request.sampling.min_tokens,
        continues=words.continues and any(map(has_text, request.prompt)),
    )
    return text if request.sampling.logprobs is None else ScoredText(text)


def lacks_logprobs(request: Request, delta: Delta, *, first: bool) -> bool:
    """Whether values that were asked for are missing; ``first``: no token came before."""
    if not delta.tokens:
        return False
    if request.sampling.logprobs is not None and len(delta.logprobs) != len(delta.tokens):
        return True
    if request.sampling.prompt_logprobs is None or not first:
        return False
    return len(delta.prompt_logprobs) != len(request.prompt) - 1


class Place(Protocol):
    """Where a choice waits or runs."""

    def cancel(self, choice: int) -> None:
        """Nobody wants this choice any more."""


class Choice:
    """One choice: its tokens, and the state of its text.

    Attributes:
        output: all tokens that arrived, for a replica that has to go on after them.
        place: where it waits or runs; None when it has ended there.
        finish: set when its reader has been told the end.
        num_tokens: those that were read.
    """

    __slots__ = (
        "_arrived_at",
        "_end",
        "_gaps",
        "_measured_at",
        "_prompt_logprobs",
        "_scored",
        "_text",
        "_unread",
        "_untold",
        "cached_tokens",
        "finish",
        "index",
        "num_tokens",
        "output",
        "place",
    )

    def __init__(self, index: int, text: Detokenizer | ScoredText) -> None:
        self.index = index
        self.place: Place | None = None
        self.output: list[int] = []
        self.finish: Finish | None = None
        self.num_tokens = 0
        self.cached_tokens = 0
        self._text = text
        self._scored = text if isinstance(text, ScoredText) else None
        self._unread = 0  # where in the output
        self._end: FinishReason | None = None
        self._prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        self._untold = 0
        self._measured_at: float | None = None
        self._arrived_at = 0.0
        self._gaps = 0

    @property
    def is_new(self) -> bool:
        """No token has arrived."""
        return self._measured_at is None

    @property
    def goes_on(self) -> bool:
        """More tokens are to come, and somebody wants them."""
        return self._end is None and self.finish is None

    def give_up(self) -> None:
        """Nobody wants more of it: tell whoever works on it."""
        place, self.place = self.place, None
        if place is not None:
            place.cancel(self.index)

    def receive(self, delta: Delta, at: float) -> None:
        self.cached_tokens += delta.cached_tokens
        if delta.tokens:
            self.output += delta.tokens
            self._arrived_at = at
            if self._measured_at is None:
                self._measured_at = at
                self._prompt_logprobs = delta.prompt_logprobs
            else:
                self._gaps += len(delta.tokens)
            if self._scored is not None:
                self._scored.score(delta.logprobs)
        if delta.finish is not None:
            self._end = delta.finish
            self.place = None

    def take(self, record: Record) -> Update | None:
        """What was not read yet; None while it is no whole character and no end."""
        number, text = self._decode()
        self.num_tokens += number
        self._untold += number
        if self._gaps and self._measured_at is not None:
            # Tokens of one turn share the time since the turn before.
            record.next_tokens(self._gaps, self._arrived_at - self._measured_at)
            self._measured_at, self._gaps = self._arrived_at, 0
        if not text and self.finish is None:
            return None
        tokens: tuple[ScoredToken, ...] = ()
        if self._scored is not None:
            tokens = self._scored.take(last=self.finish is not None)
        update = Update(self.index, text, self._untold, self.finish, tokens, self._prompt_logprobs)
        self._untold, self._prompt_logprobs = 0, ()
        return update

    def _decode(self) -> tuple[int, str]:
        """How many tokens count, and their text; sets ``finish`` at the end of the choice."""
        tokens = self.output[self._unread :]
        self._unread += len(tokens)
        seen = self._text.num_tokens
        # The token that ends the sequence counts, but it is no text.
        text = self._text.feed(tokens[:-1] if self._end is FinishReason.STOP else tokens)
        if self._end is not None and not self._text.stopped:
            text += self._text.finish()
            self.finish = _FINISHES[self._end]
            if self._end is FinishReason.STOP and self._scored is not None:
                self._scored.end(tokens[-1:])
        if self._text.stopped:
            self.finish = "stop"
            return self._text.num_tokens - seen, text
        return len(tokens), text
