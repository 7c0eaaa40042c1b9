"""Server-sent events as OpenAI's clients read them.

Owns the bytes of a streamed response. A chunk is cut once per response into what stays the same
and what changes, so a piece of text costs one JSON string and a concatenation:

    data: {"id":…,"choices":[{"index":0,"delta":{"content":"Hello"},…}]}⏎⏎
    └─────────── prefix of choice 0 ───────────────────────┘└ text ┘└ suffix ┘
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from chairlift.cluster.errors import RequestError
from chairlift.deployments.openai_response import Api, ResponseHead, Usage, error_body
from chairlift.deployments.tool_reader import CallDelta

__all__ = ["DONE", "ChunkEncoder", "error_event"]

DONE = b"data: [DONE]\n\n"

_OPEN_CHOICE = b',"logprobs":null,"finish_reason":null}]'
_NULL = b"null"


class ChunkEncoder:
    """Encodes the chunks of one response. JSON leaves no bare newline, so an event is one line."""

    def __init__(self, head: ResponseHead, num_choices: int, *, include_usage: bool) -> None:
        self._response = head
        chat = head.api is Api.CHAT
        fields = {
            "id": head.id,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": head.created,
            "model": head.model,
        }
        self._chat = chat
        self._head = b"data: " + orjson.dumps(fields)[:-1] + b',"choices":['
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        opening = b',"delta":{"content":' if chat else b',"text":'
        self._choices = [self._head + b'{"index":%d' % index for index in range(num_choices)]
        self._prefixes = [choice + opening for choice in self._choices]
        self._brace = b"}" if chat else b""
        self._suffix = self._brace + _OPEN_CHOICE + self._tail

    def opening(self) -> bytes:
        """What comes before the first piece of text: in a chat, each choice's role."""
        if not self._chat:
            return b""
        role = b',"delta":{"role":"assistant","content":""}' + _OPEN_CHOICE + self._tail
        return b"".join(choice + role for choice in self._choices)

    def text(self, choice: int, text: str, logprobs: bytes | None = None) -> bytes:
        """A piece of a choice's text, with the JSON of its log probabilities."""
        if logprobs is None:
            return self._prefixes[choice] + orjson.dumps(text) + self._suffix
        rest = b'%s,"logprobs":%s,"finish_reason":null}]' % (self._brace, logprobs)
        return self._prefixes[choice] + orjson.dumps(text) + rest + self._tail

    def calls(self, choice: int, calls: Sequence[CallDelta]) -> bytes:
        """News of a choice's calls."""
        delta = orjson.dumps([call.as_json() for call in calls])
        return self._choices[choice] + b',"delta":{"tool_calls":' + delta + self._suffix

    def finish(self, choice: int, reason: str, logprobs: bytes | None = None) -> bytes:
        """A choice's last chunk; ``logprobs`` are those of tokens behind the last of the text."""
        empty = b',"delta":{}' if self._chat else b',"text":""'
        rest = b',"logprobs":%s,"finish_reason":"%s"}]' % (logprobs or _NULL, reason.encode())
        return self._choices[choice] + empty + rest + self._tail

    def usage(self, usage: Usage) -> bytes:
        """The chunk after all choices' last, for those who asked for it."""
        closing = orjson.dumps(self._response.closing(usage))
        return self._head + b"]," + closing[1:] + b"\n\n"


def error_event(error: RequestError) -> bytes:
    """An error after the response has begun; no ``[DONE]`` follows it."""
    return b"data: " + error_body(error) + b"\n\n"
