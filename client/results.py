"""What calls return: plain values that never change.

Owns their types. How they are read from JSON is ``client.reading``'s.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Answer",
    "Choice",
    "Delta",
    "Health",
    "Model",
    "ReplicaHealth",
    "TokenLogprob",
    "Tokenized",
    "ToolCall",
    "ToolCallDelta",
    "Usage",
]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call; ``cached_tokens`` are those of the prompt that were not computed anew."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token and how likely it was.

    Attributes:
        logprob: None for the first token of an echoed prompt, which nothing predicts.
        top: the likeliest tokens at its place, with their log probabilities.
        raw: the token's bytes, which need not be a whole character; None from completions.
    """

    token: str
    logprob: float | None
    top: tuple[tuple[str, float], ...] = ()
    raw: bytes | None = None


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model wants called; ``arguments`` is JSON as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the ``n`` texts of an answer.

    Attributes:
        logprobs: None unless asked for.
    """

    index: int
    text: str
    finish_reason: str | None
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What a chat or a completion has come to.

    Attributes:
        seeds: one a prompt; sent as ``seed``, one gives the same answer again.
        request_id: by which the server's operator finds the request.
    """

    id: str
    model: str
    choices: tuple[Choice, ...]
    usage: Usage
    seeds: tuple[int, ...]
    request_id: str

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self.choices[0].text


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call; ``index`` says of which, and ``id`` and ``name`` come once."""

    index: int
    id: str | None
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class Delta:
    """What has come of one choice; the last one has its ``finish_reason``."""

    choice: int
    text: str = ""
    finish_reason: str | None = None
    tool_calls: tuple[ToolCallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the server offers.

    Attributes:
        max_tokens: of a prompt and its answer together; None where the server does not say.
    """

    id: str
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class Tokenized:
    """A prompt as the model sees it; ``max_tokens`` as in ``Model``."""

    tokens: tuple[int, ...]
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """One replica; what is not known is None, never 0."""

    id: str
    live: bool
    running: int | None
    waiting: int | None
    report_age_s: float | None


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the service can answer now."""

    ok: bool
    model: str
    replicas: tuple[ReplicaHealth, ...]
