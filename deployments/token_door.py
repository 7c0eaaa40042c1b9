"""Text to tokens and back, over HTTP.

Owns the two endpoints, which are those of vLLM:

    POST /tokenize    {"prompt": "text"} or {"messages": […]}
                      → {"count": 2, "max_model_len": 8192, "tokens": [1, 2], "token_strs": null}
    POST /detokenize  {"tokens": [1, 2]} → {"prompt": "text"}

What is long is worked on in a thread, one request at a time, so that others' tokens flow on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Protocol, TypeAlias

import orjson
from pydantic import ConfigDict, Field, model_validator

from chairlift.cluster.config import HttpConfig
from chairlift.cluster.errors import InvalidRequest
from chairlift.deployments.asgi import Exchange
from chairlift.deployments.front import INLINE_BODY
from chairlift.deployments.openai_convert import Converter, TextEncoder
from chairlift.deployments.openai_messages import MAX_MESSAGES, Message, Part, check_messages
from chairlift.deployments.openai_sampling import check_token_ids
from chairlift.deployments.openai_schema import TokenIds, parse_body
from chairlift.deployments.tool_schema import MAX_TOOLS, Tool, read_tools

__all__ = ["DETOKENIZE", "TOKENIZE", "DetokenizeBody", "TokenDoor", "TokenizeBody"]

TOKENIZE, DETOKENIZE = "/tokenize", "/detokenize"

MAX_TOKENS = 2**20

Endpoint: TypeAlias = Callable[[Exchange], Awaitable[None]]


def _only(given: str, absent: str) -> dict[str, Any]:
    """JSON Schema: one field is there, and the other is not."""
    return {
        "required": [given],
        "properties": {given: {"not": {"type": "null"}}, absent: {"type": "null"}},
    }


class TokenizeBody(Part):
    """A text, or a chat that the model's template makes one of."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [_only("prompt", "messages"), _only("messages", "prompt")]}
    )

    model: str | None = None
    prompt: str | None = None
    messages: (
        Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
        | None
    ) = None
    add_special_tokens: bool | None = None
    """Those that the model wants around a text: by default for a prompt, not for messages, whose
    template writes them."""
    add_generation_prompt: bool = True
    """Of messages: end with the begin of the assistant's answer."""
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    """Told to the model beside messages."""
    return_token_strs: bool = False
    """Tell also how the vocabulary spells each token."""

    @model_validator(mode="after")
    def _check_kind(self) -> TokenizeBody:
        if (self.prompt is None) is (self.messages is None):
            raise InvalidRequest("prompt: give either prompt or messages", param="prompt")
        check_messages(self.messages or ())
        return self


class DetokenizeBody(Part):
    """Token ids."""

    model: str | None = None
    tokens: Annotated[TokenIds, Field(max_length=MAX_TOKENS)]


class Speller(TextEncoder, Protocol):
    """What is needed of ``router.tokenizer.Tokenizer``."""

    def entry(self, id_: int) -> str: ...


class TokenDoor:
    """Answers for one model."""

    def __init__(
        self,
        tokenizer: Speller,
        converter: Converter,
        config: HttpConfig,
        limit: Callable[[], int],
    ) -> None:
        """Open it.

        Args:
            tokenizer: the model's.
            converter: what makes a text of messages, and knows the model's name.
            config: what is read of a body.
            limit: tokens of a prompt and its answer at most, as things stand.
        """
        self._tokenizer = tokenizer
        self._converter = converter
        self._config = config
        self._limit = limit
        self._turn = asyncio.Semaphore(1)

    def endpoints(self) -> Mapping[str, tuple[str, Endpoint]]:
        """Path → method and endpoint."""
        return {
            TOKENIZE: ("POST", lambda exchange: self._answer(exchange, self._tokenize)),
            DETOKENIZE: ("POST", lambda exchange: self._answer(exchange, self._detokenize)),
        }

    async def _answer(self, exchange: Exchange, work: Callable[[bytes], Any]) -> None:
        body = await exchange.read_json(self._config.max_body, self._config.body_timeout_s)
        if len(body) <= INLINE_BODY:
            answer = orjson.dumps(work(body))
        else:
            async with exchange.while_client_stays(), self._turn:
                answer = await asyncio.to_thread(lambda: orjson.dumps(work(body)))
        await exchange.respond(200, answer)

    def _tokenize(self, body: bytes) -> dict[str, Any]:
        asked = parse_body(TokenizeBody, body)
        self._converter.check_model(asked.model)
        special = asked.add_special_tokens
        if asked.messages is None:
            text = asked.prompt or ""
            special = special is not False
        else:
            text = self._converter.chat_text(
                asked.messages,
                read_tools(asked.tools, None, None),
                add_generation_prompt=asked.add_generation_prompt,
            )
        tokens = self._tokenizer.encode(text, add_special=bool(special))
        spelt = map(self._tokenizer.entry, tokens) if asked.return_token_strs else None
        return {
            "count": len(tokens),
            "max_model_len": self._limit(),
            "tokens": tokens,
            "token_strs": spelt and list(spelt),
        }

    def _detokenize(self, body: bytes) -> dict[str, Any]:
        asked = parse_body(DetokenizeBody, body)
        self._converter.check_model(asked.model)
        check_token_ids(asked.tokens, "tokens", self._tokenizer.vocab_size)
        return {"prompt": self._tokenizer.decode(asked.tokens, skip_special=False)}
