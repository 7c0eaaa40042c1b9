"""The answers of the OpenAI-style API that come in one piece.

Owns the shape of responses and errors; streamed answers are written in ``deployments.sse``. It
knows nothing of how the text came about.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from chairlift.cluster.errors import RequestError
from chairlift.deployments.openai_logprobs import Columns, LogprobsWriter
from chairlift.deployments.tool_reader import CallDelta, whole_calls

__all__ = ["Api", "Choice", "ResponseHead", "Usage", "error_body", "response_body"]


class Api(enum.Enum):
    """The two endpoints that generate; the value is the prefix of their responses' ids."""

    CHAT = "chatcmpl"
    COMPLETION = "cmpl"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one HTTP request; a prompt counts once, whatever ``n`` is.

    ``cached_tokens`` are those of the prompts that came from the prefix cache.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def as_json(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What a response and each of its chunks begin with, and what is told with the usage.

    Attributes:
        created: in seconds of Unix time.
        seeds: one for each prompt; OpenAI's API has no place for them, so they stand under
            ``chairlift``.
    """

    api: Api
    id: str
    created: int
    model: str
    seeds: tuple[int, ...] = ()

    def closing(self, usage: Usage) -> dict[str, Any]:
        """The fields that tell what the response took and how to get it again."""
        return {"usage": usage.as_json(), "chairlift": {"seeds": self.seeds}}


@dataclass(slots=True)
class Choice:
    """One choice of a response that is not streamed, as it grows."""

    pieces: list[str] = field(default_factory=list)
    logprobs: list[Columns] = field(default_factory=list)
    finish: str | None = None
    calls: list[CallDelta] = field(default_factory=list)


def response_body(
    head: ResponseHead, choices: Sequence[Choice], usage: Usage, logprobs: LogprobsWriter | None
) -> bytes:
    """The body of a response that is not streamed; ``logprobs`` is None if nobody asked."""
    chat = head.api is Api.CHAT
    return orjson.dumps(
        {
            "id": head.id,
            "object": "chat.completion" if chat else "text_completion",
            "created": head.created,
            "model": head.model,
            "choices": [
                {
                    "index": index,
                    **_content(head.api, "".join(choice.pieces), choice.calls),
                    "logprobs": logprobs and orjson.Fragment(logprobs.value(choice.logprobs)),
                    "finish_reason": choice.finish,
                }
                for index, choice in enumerate(choices)
            ],
            **head.closing(usage),
        }
    )


def _content(api: Api, text: str, calls: Sequence[CallDelta]) -> dict[str, Any]:
    if api is Api.COMPLETION:
        return {"text": text}
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if calls:
        message |= {"content": text or None, "tool_calls": whole_calls(calls)}
    return {"message": message}


def error_body(error: RequestError) -> bytes:
    """An error in OpenAI's form."""
    return orjson.dumps(
        {
            "error": {
                "message": error.message,
                "type": error.kind,
                "param": error.param,
                "code": error.code,
            }
        }
    )
