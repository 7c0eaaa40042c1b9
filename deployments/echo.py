"""What a completion with ``echo`` begins with: the prompt's text, and where its tokens stand in it.

Owns the way from a prompt's tokens back to places in its text. It knows no log probabilities.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from chairlift.cluster.protocol import Request

__all__ = ["Echo", "TokenDecoder", "make_echo"]


class TokenDecoder(Protocol):
    """What is needed of ``router.tokenizer.Tokenizer``."""

    @property
    def strips_space(self) -> bool: ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...

    def token_bytes(self, id_: int, *, skip_special: bool = True) -> bytes: ...

    def is_special(self, id_: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class Echo:
    """The text before a choice's own.

    Attributes:
        text: a text prompt as it was sent; token ids decoded.
        offsets: for each prompt token the characters of the text that are whole before it; empty
            where no log probabilities are wanted.
    """

    text: str
    offsets: tuple[int, ...]


def make_echo(tokenizer: TokenDecoder, prompt: str | list[int], request: Request) -> Echo:
    """The echo of ``prompt``, whose tokens are the request's."""
    text = prompt if isinstance(prompt, str) else tokenizer.decode(prompt)
    scored = request.sampling.prompt_logprobs is not None
    return Echo(text, tuple(_offsets(tokenizer, request.prompt, text)) if scored else ())


def _offsets(tokenizer: TokenDecoder, tokens: Sequence[int], text: str) -> list[int]:
    utf8 = codecs.getincrementaldecoder("utf-8")("replace")
    at_start = tokenizer.strips_space
    offsets = []
    end = 0
    for token in tokens:
        offsets.append(min(end, len(text)))
        data = tokenizer.token_bytes(token)
        if tokenizer.is_special(token):
            # Such a token is text where the client wrote its name, else it was put there unasked.
            name = tokenizer.token_bytes(token, skip_special=False)
            data = name if text.startswith(name.decode(errors="replace"), end) else b""
        piece = utf8.decode(data)
        if at_start and piece:
            at_start = False
            piece = piece.removeprefix(" ")
        end += len(piece)
    return offsets
