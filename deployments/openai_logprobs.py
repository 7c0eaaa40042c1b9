"""Log probabilities as OpenAI's two endpoints write them.

    chat        {"content": [{"token", "logprob", "bytes", "top_logprobs": [{…}, …]}, …], "refusal"}
    completion  {"tokens": […], "token_logprobs": […], "top_logprobs": [{…}, …], "text_offset": […]}

Owns that JSON. Both are lists with one entry a token, so the entries of some tokens (``Columns``)
can be written as the tokens come, and put together to a value for a chunk or a whole response.

- ``token`` is the token as text, with U+FFFD for bytes that are no character; ``bytes`` are all of
  its bytes, so those of all tokens together are the text (in SentencePiece vocabularies, with the
  space that the text's begin lost). A special token shows its name and has no bytes.
- The values are numbers to OpenAI's clients, so −inf (the token could not be chosen) is −9999.0,
  which they document for that. Only the first token of an echoed prompt, which nothing predicts,
  has null.
- A completion's ``top_logprobs`` always hold the token itself. Of tokens that are the same text,
  such as U+FFFD, they hold the likeliest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeAlias

import orjson

from chairlift.cluster.protocol import TokenLogprobs
from chairlift.router.scored_text import ScoredToken

__all__ = ["Columns", "LogprobsWriter", "TokenForms", "chat_logprobs", "completion_logprobs"]

IMPOSSIBLE = -9999.0
CACHED_FORMS = 16384

Columns: TypeAlias = tuple[bytes, ...]
"""For each list of the value, the JSON of some tokens' entries, with commas between them."""


class TokenBytes(Protocol):
    """What is needed of ``router.tokenizer.Tokenizer``."""

    def token_bytes(self, id_: int, *, skip_special: bool = True) -> bytes: ...


class TokenForms:
    """How the tokens of one vocabulary are shown; keeps those that were shown lately."""

    def __init__(self, tokenizer: TokenBytes) -> None:
        self._tokenizer = tokenizer
        self.form = lru_cache(CACHED_FORMS)(self._form)
        """Token → its text, and its bytes as numbers."""

    def _form(self, token: int) -> tuple[str, list[int]]:
        name = self._tokenizer.token_bytes(token, skip_special=False)
        return name.decode(errors="replace"), list(self._tokenizer.token_bytes(token))


class LogprobsWriter:
    """Writes the ``logprobs`` of one endpoint; see ``chat_logprobs``, ``completion_logprobs``."""

    def __init__(
        self,
        names: Sequence[str],
        lists: Callable[[Sequence[ScoredToken], int], Sequence[list[Any]]],
        rest: bytes = b"",
    ) -> None:
        """What the lists are called, makes them of tokens, and what comes after them."""
        self._names = tuple(b'"%s":' % name.encode() for name in names)
        self._lists = lists
        self._rest = rest

    def columns(self, tokens: Sequence[ScoredToken], before: int = 0) -> Columns:
        """The entries of one token or more; ``before``: characters before the tokens' text."""
        return tuple(orjson.dumps(entries)[1:-1] for entries in self._lists(tokens, before))

    def value(self, parts: Sequence[Columns]) -> bytes:
        """The JSON value of all parts together."""
        columns = list(zip(*parts, strict=True)) or [()] * len(self._names)
        lists = (
            b"%s[%s]" % (name, b",".join(column))
            for name, column in zip(self._names, columns, strict=True)
        )
        return b"{%s%s}" % (b",".join(lists), self._rest)


def chat_logprobs(forms: TokenForms) -> LogprobsWriter:
    """Those of a chat."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        text, data = forms.form(token)
        return {"token": text, "logprob": _number(logprob), "bytes": data}

    def lists(tokens: Sequence[ScoredToken], before: int) -> Sequence[list[Any]]:
        return [
            [
                {
                    **entry(scored.token, scored.logprobs.chosen),
                    "top_logprobs": [entry(*top) for top in scored.logprobs.top],
                }
                for scored in tokens
                if scored.logprobs is not None  # a chat has no echo
            ]
        ]

    return LogprobsWriter(["content"], lists, b',"refusal":null')


def completion_logprobs(forms: TokenForms) -> LogprobsWriter:
    """Those of a completion."""

    def likeliest(token: int, logprobs: TokenLogprobs) -> dict[str, float]:
        shown: dict[str, float] = {}
        for other, logprob in (*logprobs.top, (token, logprobs.chosen)):
            text, _ = forms.form(other)
            shown[text] = max(shown.get(text, IMPOSSIBLE), _number(logprob))
        return shown

    def lists(tokens: Sequence[ScoredToken], before: int) -> Sequence[list[Any]]:
        known = [(scored.token, scored.logprobs) for scored in tokens]
        return [
            [forms.form(token)[0] for token, _ in known],
            [logprobs and _number(logprobs.chosen) for _, logprobs in known],
            [logprobs and likeliest(token, logprobs) for token, logprobs in known],
            [before + scored.offset for scored in tokens],
        ]

    return LogprobsWriter(["tokens", "token_logprobs", "top_logprobs", "text_offset"], lists)


def _number(logprob: float) -> float:
    return logprob if logprob > IMPOSSIBLE else IMPOSSIBLE
