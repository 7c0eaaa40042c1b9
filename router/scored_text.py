"""One choice's text together with the log probabilities of its tokens.

Owns which tokens are settled: those whose text has been sent, whole. A token that is part of a
character, or of what may become a stop string, waits for the rest, so that whoever is sent the
settled tokens with the text has both of the same part of the answer. It knows no requests.

    text      … t h e   e n                  stop string: "end"
    tokens      └───┘ └───┘                  the second one's text is partly withheld,
    sent      ────────┘                      so it waits
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chairlift.cluster.protocol import TokenLogprobs
from chairlift.router.detokenizer import Detokenizer

__all__ = ["ScoredText", "ScoredToken"]


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of a text.

    Attributes:
        token: its id.
        offset: characters of the text that were whole before it.
        logprobs: None for the first token of a prompt, which nothing predicts.
    """

    token: int
    offset: int
    logprobs: TokenLogprobs | None


class ScoredText:
    """A ``Detokenizer`` that also tells which tokens are settled.

    All that ``take`` returns, joined, does not depend on how the tokens were grouped. At the end
    these are the tokens up to the one that ended the sequence; after a stop string, those of which
    a part stands in the text.
    """

    __slots__ = ("_detokenizer", "_incoming", "_sent", "_waiting")

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer
        self._incoming: deque[TokenLogprobs] = deque()
        self._waiting: deque[tuple[ScoredToken, float]] = deque()
        self._sent = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string is complete; the text ends before it."""
        return self._detokenizer.stopped

    @property
    def num_tokens(self) -> int:
        """Tokens consumed, the one that completed the stop string being the last."""
        return self._detokenizer.num_tokens

    def score(self, logprobs: Iterable[TokenLogprobs]) -> None:
        """Those of the tokens that are fed next, in order."""
        self._incoming.extend(logprobs)

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that is safe to send now."""
        pieces = []
        for token in tokens:
            if self.stopped:
                break
            start = self._sent + self._detokenizer.num_withheld
            pieces.append(self._send(self._detokenizer.feed((token,))))
            self._wait(token, start)
        return "".join(pieces)

    def finish(self) -> str:
        """The withheld rest, as no more tokens come."""
        return self._send(self._detokenizer.finish())

    def end(self, tokens: Sequence[int]) -> None:
        """What ended the sequence and has no text, a token at most; after ``finish``."""
        for token in tokens:
            if not self.stopped:
                self._wait(token, self._sent)

    def take(self, *, last: bool) -> tuple[ScoredToken, ...]:
        """What has been settled since the last time; ``last``: no more text comes."""
        settled = []
        while self._waiting:
            token, end = self._waiting[0]
            if end > self._sent and not (last and token.offset < self._sent):
                break
            self._waiting.popleft()
            settled.append(token)
        return tuple(settled)

    def _send(self, text: str) -> str:
        self._sent += len(text)
        return text

    def _wait(self, token: int, start: int) -> None:
        """Let ``token`` wait until the text is sent up to its end, in characters."""
        detokenizer = self._detokenizer
        end: float = self._sent + detokenizer.num_withheld + detokenizer.in_character
        if self.stopped:
            end = math.inf  # it completed the stop string, which is never sent
        self._waiting.append((ScoredToken(token, start, self._incoming.popleft()), end))
