"""From a sequence's tokens to the text that may be sent now.

Owns one choice's decoding state: a character of which some bytes are still to come, and text
that may be the beginning of a stop string. It knows nothing of requests or of the network.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from chairlift.router.stop_strings import StopScanner
from chairlift.router.tokenizer import Tokenizer

__all__ = ["Detokenizer"]


class Detokenizer:
    """Incremental ``Tokenizer.decode``, cut before the first stop string.

    All pieces together, with that of ``finish``, are ``tokenizer.decode(tokens)`` up to there.
    A piece holds whole characters; U+FFFD stands in it only where the tokens' bytes are no
    UTF-8, whatever comes next. The cost of a token does not grow with the text.

    Two things differ where asked for. The text of the first ``min_tokens`` tokens is no place for
    stop strings, so that at least those tokens count. A text that ``continues`` another one keeps
    a space at its begin, which SentencePiece vocabularies otherwise drop there.

    Attributes:
        num_tokens: tokens consumed, the one that completed the stop string being the last.
        in_character: the text ends within a character, of which some bytes are still to come.
        stopped: a stop string is complete; the text ends before it.
    """

    __slots__ = (
        "_at_start",
        "_min_tokens",
        "_passes",
        "_scanner",
        "_tokenizer",
        "_utf8",
        "_whole_texts",
        "in_character",
        "num_tokens",
        "stopped",
    )

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: tuple[str, ...] = (),
        *,
        min_tokens: int = 0,
        continues: bool = False,
    ) -> None:
        """Start a text; ValueError if a stop string is empty."""
        self._tokenizer = tokenizer
        self._whole_texts = tokenizer.whole_texts
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.strips_space and not continues
        self._min_tokens = min_tokens
        self._scanner = StopScanner(stop)
        self._passes = not (self._at_start or stop)
        self.num_tokens = 0
        self.in_character = False
        self.stopped = False

    @property
    def num_withheld(self) -> int:
        """Whole characters that may be the beginning of a stop string, and so were not sent."""
        return self._scanner.num_withheld

    def feed(self, tokens: Sequence[int]) -> str:
        """The text that is safe to send now; tokens after a complete stop string are ignored."""
        pieces = []
        for token in tokens:
            if self.stopped:
                break
            self.num_tokens += 1
            text = None if self.in_character else self._whole_texts[token]
            if text is None:
                text = self._utf8.decode(self._tokenizer.token_bytes(token))
                self.in_character = bool(self._utf8.getstate()[0])
            pieces.append(text if self._passes else self._scan(text))
        return "".join(pieces)

    def finish(self) -> str:
        """The withheld rest, as no more tokens come; half a character becomes U+FFFD."""
        self.in_character = False
        return self._scan(self._utf8.decode(b"", final=True)) + self._scanner.finish()

    def _scan(self, text: str) -> str:
        if self._at_start and text:
            self._at_start = False
            text = text.removeprefix(" ")
        if self.num_tokens > self._min_tokens:
            text = self._scanner.feed(text)
            self.stopped = self._scanner.stopped
        return text
