"""What the calls of a client are in HTTP.

Owns the paths, the bodies, the headers, and which options there are. Pure; it sends nothing.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypedDict

__all__ = [
    "Call",
    "ChatOptions",
    "CompletionOptions",
    "Message",
    "Options",
    "Prompt",
    "chat",
    "completion",
    "detokenize",
    "get",
    "server_address",
    "tokenize",
]

Message: TypeAlias = Mapping[str, object]
"""``{"role": "user", "content": "Hello!"}``, and whatever else the model's template takes."""

Prompt: TypeAlias = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]
"""Text or tokens, or several of one kind, each of which gets its own choices."""


class Options(TypedDict, total=False):
    """Of chats and completions. Left out or None: the server decides.

    ``timeout_s`` is for the whole call, retries and the end of a stream included; all others are
    fields of the request.
    """

    timeout_s: float | None
    model: str | None
    max_tokens: int | None
    min_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    n: int | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    cache_salt: str | None
    priority: Literal["interactive", "standard", "batch"] | None
    deadline_ms: int | None


class ChatOptions(Options, total=False):
    """Of chats."""

    logprobs: bool | None
    top_logprobs: int | None
    response_format: Mapping[str, object] | None
    tools: Sequence[Mapping[str, object]] | None
    tool_choice: str | Mapping[str, object] | None
    parallel_tool_calls: bool | None


class CompletionOptions(Options, total=False):
    """Of completions."""

    logprobs: int | None
    echo: bool | None


@dataclass(frozen=True, slots=True)
class Call:
    """One call.

    Attributes:
        body: JSON; None for GET.
        timeout_s: None for the client's own.
        answers: the statuses whose bodies are results.
    """

    method: str
    path: str
    body: bytes | None = None
    timeout_s: float | None = None
    answers: frozenset[int] = frozenset({200})
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def headers(self, left_s: float | None) -> dict[str, str]:
        """Those that belong to this call; ``left_s`` is the time that it still has."""
        headers = {"X-Request-Id": self.request_id}
        if self.body is not None:
            headers["Content-Type"] = "application/json"
        if left_s is not None:
            headers["X-Request-Timeout"] = f"{max(left_s, 0.001):.3f}"
        return headers


def chat(messages: Sequence[Message], options: ChatOptions, *, stream: bool) -> Call:
    """Raises TypeError for options that there are not."""
    _check(options, ChatOptions)
    return _generation("/v1/chat/completions", {"messages": list(messages)}, options, stream)


def completion(prompt: Prompt, options: CompletionOptions, *, stream: bool) -> Call:
    """Raises TypeError for options that there are not."""
    _check(options, CompletionOptions)
    return _generation("/v1/completions", {"prompt": prompt}, options, stream)


def tokenize(text: str | Sequence[Message]) -> Call:
    """Of a text, or of a chat as the model's template writes it."""
    if isinstance(text, str):
        return Call("POST", "/tokenize", _json({"prompt": text}))
    return Call("POST", "/tokenize", _json({"messages": list(text)}))


def detokenize(tokens: Sequence[int]) -> Call:
    return Call("POST", "/detokenize", _json({"tokens": tokens}))


def get(path: str, *, answers: frozenset[int] = frozenset({200})) -> Call:
    return Call("GET", path, answers=answers)


def server_address(url: str) -> str:
    """``http://host:port`` from an address with or without ``/v1``; ValueError for no URL."""
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no address; write for instance http://127.0.0.1:8000")
    return base


def _check(options: Mapping[str, object], known: type) -> None:
    """The server ignores fields that it does not know, so a slip would go unnoticed."""
    for name in options:
        if name not in known.__annotations__:
            raise TypeError(f"there is no option {name!r}")


def _generation(
    path: str, fields: dict[str, Any], options: ChatOptions | CompletionOptions, stream: bool
) -> Call:
    given = {name: value for name, value in options.items() if value is not None}
    timeout_s = options.get("timeout_s")
    given.pop("timeout_s", None)
    if stream:
        given |= {"stream": True, "stream_options": {"include_usage": True}}
    if timeout_s is not None and not timeout_s > 0:
        raise ValueError(f"timeout_s: must be above 0, not {timeout_s}")
    return Call("POST", path, _json(fields | given), timeout_s)


def _json(body: Mapping[str, object]) -> bytes:
    """Raises ValueError for NaN and infinities, which JSON has not."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False, default=_plain).encode()


def _plain(value: object) -> object:
    """Any mapping or sequence as those that JSON has."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")
