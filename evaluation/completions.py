"""Sends one completion request and notes when its tokens arrive.

Owns the bodies of the load generator's requests and the record of each answer; knows nothing of
pacing. A prompt is random token ids, so its length is exact; over the chat API it is that many
short words, and the server's count tells how long it really was.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from chairlift.evaluation.lengths import Lengths, prompt_ids
from chairlift.evaluation.load import Ask
from chairlift.evaluation.openai_stream import ServerFault, one_line, read_error, stream_events
from chairlift.evaluation.records import RequestRecord

__all__ = ["WORDS", "CompletionClient", "Target", "request_body"]

WORDS = ("snow", "lift", "rope", "hill", "seat", "wind", "pine", "rock", "lake", "path")
"""One token each in the usual vocabularies, with a space before it or without."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go and what they ask for.

    Attributes:
        base: address up to and including ``/v1``.
        chat: use chat completions.
        ignore_eos: go on past the model's end token, so that output lengths are exact.
        vocab_size: token ids of prompts are below it.
    """

    base: str
    model: str
    chat: bool = False
    ignore_eos: bool = True
    vocab_size: int = 30_000

    @property
    def url(self) -> str:
        return f"{self.base}/chat/completions" if self.chat else f"{self.base}/completions"


def request_body(target: Target, lengths: Lengths, rng: random.Random) -> bytes:
    """JSON for one request whose prompt is unlike any other's."""
    fields: dict[str, Any] = {
        "model": target.model,
        "max_tokens": lengths.output,
        "seed": rng.getrandbits(31),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.ignore_eos:
        fields["ignore_eos"] = True
    if target.chat:
        words = " ".join(rng.choices(WORDS, k=lengths.prompt))
        fields["messages"] = [{"role": "user", "content": words}]
    else:
        fields["prompt"] = rng.choices(prompt_ids(target.vocab_size), k=lengths.prompt)
    return orjson.dumps(fields)


class CompletionClient:
    """Sends requests over one session; a failure becomes a record, never an exception."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        target: Target,
        *,
        clock: Callable[[], float],
        timeout_s: float,
    ) -> None:
        self._session = session
        self._target = target
        self._clock = clock
        self._timeout_s = timeout_s

    async def send(self, ask: Ask, intended: float) -> RequestRecord:
        """Send now and follow to the end; ``intended`` goes to the record."""
        sent = self._clock()
        answer = _Answer()
        failure: str | None = None
        detail = ""
        wait_s = ask.wait_s(sent - intended, self._timeout_s)
        try:
            async with asyncio.timeout(wait_s) as limit:
                await self._receive(ask.body, answer, limit)
        except ServerFault as error:
            failure, detail = error.kind, error.message
        except TimeoutError:
            failure, detail = "timeout", f"no end within {self._timeout_s:g} s"
            if wait_s < self._timeout_s and not answer.chunks:
                failure, detail = "gave_up", f"no first token within {ask.patience_s:g} s"
        except (aiohttp.ClientError, OSError) as error:
            failure, detail = "connection", one_line(error)
        except ValueError as error:  # a line longer than aiohttp reads
            failure, detail = "bad_answer", str(error)
        return RequestRecord(
            intended=intended,
            sent=sent,
            ended=self._clock(),
            asked_prompt=ask.prompt_tokens,
            asked_output=ask.output_tokens,
            chunks=tuple(answer.chunks or answer.last_event),
            prompt_tokens=answer.prompt_tokens,
            output_tokens=answer.output_tokens,
            failure=failure,
            detail=detail,
            digest=answer.digest,
        )

    async def _receive(self, body: bytes, answer: _Answer, limit: asyncio.Timeout) -> None:
        end = asyncio.get_running_loop().time() + self._timeout_s
        headers = {"Content-Type": "application/json"}
        async with self._session.post(self._target.url, data=body, headers=headers) as response:
            if response.status != 200:
                raise await read_error(response)
            async for event in stream_events(response):
                answer.take(event, self._clock())
                if len(answer.chunks) == 1:
                    limit.reschedule(end)


@dataclass(slots=True)
class _Answer:
    """What has arrived of one answer; ``last_event`` holds the time of the last event, if any."""

    chunks: list[float] = field(default_factory=list)
    last_event: list[float] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    _text: hashlib._Hash = field(default_factory=hashlib.sha256)

    @property
    def digest(self) -> str:
        """Of the text."""
        return self._text.hexdigest()[:16]

    def take(self, event: dict[str, Any], now: float) -> None:
        self.last_event = [now]
        if isinstance(usage := event.get("usage"), dict):
            self.prompt_tokens = usage.get("prompt_tokens")
            self.output_tokens = usage.get("completion_tokens")
        for choice in event.get("choices") or ():
            # The first event of a chat answer names the role and has no text: it is no token.
            text = choice.get("text") or (choice.get("delta") or {}).get("content")
            if text:
                self.chunks.append(now)
                self._text.update(text.encode())
