"""The client for asyncio; cancelling the task that waits for a call ends it at the server.

Owns which calls there are; ``client.client`` has the same. How they are sent is
``client.async_sender``'s, and what they mean stands in the modules that both share.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Self, Unpack

from chairlift.client import calls, reading
from chairlift.client.async_sender import AsyncSender
from chairlift.client.async_stream import AsyncStream
from chairlift.client.calls import Call, ChatOptions, CompletionOptions, Message, Prompt
from chairlift.client.door import Door
from chairlift.client.results import Answer, Health, Model, Tokenized
from chairlift.client.retries import RetryPolicy

__all__ = ["AsyncClient"]


class AsyncClient:
    """One service, for one event loop; any number of its tasks may share it.

    Every call raises ClientError. ``async with`` closes its connections, as ``close`` does.
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
        self._sender = AsyncSender(door, tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections; calls that go on break."""
        await self._sender.close()

    async def chat(self, messages: Sequence[Message], **options: Unpack[ChatOptions]) -> Answer:
        """The model's answer to a conversation."""
        return await self._answer(calls.chat(messages, options, stream=False))

    def stream_chat(
        self, messages: Sequence[Message], **options: Unpack[ChatOptions]
    ) -> AsyncStream:
        """The same, piece by piece."""
        return self._stream(calls.chat(messages, options, stream=True))

    async def complete(self, prompt: Prompt, **options: Unpack[CompletionOptions]) -> Answer:
        """How the model goes on from a prompt."""
        return await self._answer(calls.completion(prompt, options, stream=False))

    def stream_complete(self, prompt: Prompt, **options: Unpack[CompletionOptions]) -> AsyncStream:
        """The same, piece by piece."""
        return self._stream(calls.completion(prompt, options, stream=True))

    async def models(self) -> tuple[Model, ...]:
        """What the service offers."""
        call = calls.get("/v1/models")
        return reading.read(reading.read_models, await self._sender.fetch(call), call.request_id)

    async def tokenize(self, text: str | Sequence[Message]) -> Tokenized:
        """The tokens of a text, or of a conversation as the model would see it."""
        call = calls.tokenize(text)
        return reading.read(reading.read_tokenized, await self._sender.fetch(call), call.request_id)

    async def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of some tokens."""
        call = calls.detokenize(tokens)
        return reading.read(reading.read_prompt, await self._sender.fetch(call), call.request_id)

    async def health(self) -> Health:
        """Whether the service can answer now; that it cannot is a result, not an error."""
        call = calls.get("/health", answers=frozenset({200, 503}))
        return reading.read(reading.read_health, await self._sender.fetch(call), call.request_id)

    async def _answer(self, call: Call) -> Answer:
        reader = partial(reading.read_answer, request_id=call.request_id)
        return reading.read(reader, await self._sender.fetch(call), call.request_id)

    def _stream(self, call: Call) -> AsyncStream:
        return AsyncStream(lambda: self._sender.open(call), call.request_id)
