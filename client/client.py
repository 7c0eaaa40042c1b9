"""The client for threads: each call returns when its result is there.

Owns which calls there are; ``client.async_client`` has the same. How they are sent is
``client.sender``'s, and what they mean stands in the modules that both share.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Self, Unpack

from chairlift.client import calls, reading
from chairlift.client.calls import Call, ChatOptions, CompletionOptions, Message, Prompt
from chairlift.client.door import Door
from chairlift.client.results import Answer, Health, Model, Tokenized
from chairlift.client.retries import RetryPolicy
from chairlift.client.sender import Sender
from chairlift.client.stream import Stream

__all__ = ["Client"]


class Client:
    """One service; any number of threads may share it.

    Every call raises ClientError. ``with`` closes its connections, as ``close`` does.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        timeout_s: float | None = None,
        retries: RetryPolicy = RetryPolicy(),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Nothing is sent yet.

        Args:
            url: such as ``http://127.0.0.1:8000``.
            api_key: for a service that has tenants; nothing is read from the environment.
            timeout_s: of every call that does not bring its own; None: no limit.
            retries: what is tried again, and how often.
            tls: whom to trust, and perhaps a certificate to show; by default what the machine
                trusts.

        Raises:
            ValueError: one of them cannot be.
        """
        door = Door(url, api_key, timeout_s, retries, monotonic())
        self._sender = Sender(door, tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections; calls that go on break."""
        self._sender.close()

    def chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Answer:
        """The model's answer to a conversation."""
        return self._answer(calls.chat(messages, options, stream=False))

    def stream_chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Stream:
        """The same, piece by piece."""
        return self._stream(calls.chat(messages, options, stream=True))

    def complete(self, prompt: Prompt, **options: Unpack[CompletionOptions]) -> Answer:
        """How the model goes on from a prompt."""
        return self._answer(calls.completion(prompt, options, stream=False))

    def stream_complete(self, prompt: Prompt, **options: Unpack[CompletionOptions]) -> Stream:
        """The same, piece by piece."""
        return self._stream(calls.completion(prompt, options, stream=True))

    def models(self) -> tuple[Model, ...]:
        """What the service offers."""
        call = calls.get("/v1/models")
        return reading.read(reading.read_models, self._sender.fetch(call), call.request_id)

    def tokenize(self, text: str | Sequence[Message]) -> Tokenized:
        """The tokens of a text, or of a conversation as the model would see it."""
        call = calls.tokenize(text)
        return reading.read(reading.read_tokenized, self._sender.fetch(call), call.request_id)

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of some tokens."""
        call = calls.detokenize(tokens)
        return reading.read(reading.read_prompt, self._sender.fetch(call), call.request_id)

    def health(self) -> Health:
        """Whether the service can answer now; that it cannot is a result, not an error."""
        call = calls.get("/health", answers=frozenset({200, 503}))
        return reading.read(reading.read_health, self._sender.fetch(call), call.request_id)

    def _answer(self, call: Call) -> Answer:
        reader = partial(reading.read_answer, request_id=call.request_id)
        return reading.read(reader, self._sender.fetch(call), call.request_id)

    def _stream(self, call: Call) -> Stream:
        return Stream(lambda: self._sender.open(call), call.request_id)
