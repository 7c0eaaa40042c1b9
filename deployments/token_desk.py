"""Text to tokens and back, whatever a request came by.

Owns what may be asked, what it means, and that what is long is worked on in a thread, one request
at a time, so that others' tokens flow on. It knows no protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, Protocol, TypeVar

from pydantic import ConfigDict, Field, model_validator

from chairlift.cluster.errors import InvalidRequest
from chairlift.deployments.openai_convert import Converter, TextEncoder
from chairlift.deployments.openai_messages import MAX_MESSAGES, Message, Part, check_messages
from chairlift.deployments.openai_sampling import check_token_ids
from chairlift.deployments.openai_schema import Body, TokenIds, parse_body
from chairlift.deployments.tool_schema import MAX_TOOLS, Tool, read_tools

__all__ = ["DetokenizeBody", "TokenDesk", "TokenizeBody"]

MAX_TOKENS = 2**20

Answer = TypeVar("Answer")


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


class TokenDesk:
    """One model's; belongs to an event loop."""

    def __init__(self, tokenizer: Speller, converter: Converter) -> None:
        """``converter``: makes a text of messages, and knows the model's name."""
        self._tokenizer = tokenizer
        self._converter = converter
        self._turn = asyncio.Semaphore(1)

    async def run(self, work: Callable[[], Answer], *, quick: bool) -> Answer:
        """What ``work`` returns, which asks ``tokenize`` or ``detokenize``."""
        if quick:
            return work()
        async with self._turn:
            return await asyncio.to_thread(work)

    def tokenize(self, body: Body) -> tuple[list[int], list[str] | None]:
        """The tokens of a TokenizeBody and, where asked for, how they are spelt.

        Raises InvalidRequest, NotFound.
        """
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
        if not asked.return_token_strs:
            return tokens, None
        return tokens, [self._tokenizer.entry(token) for token in tokens]

    def detokenize(self, body: Body, *, skip_special: bool = False) -> str:
        """The text of a DetokenizeBody; raises InvalidRequest, NotFound."""
        asked = parse_body(DetokenizeBody, body)
        self._converter.check_model(asked.model)
        check_token_ids(asked.tokens, "tokens", self._tokenizer.vocab_size)
        return self._tokenizer.decode(asked.tokens, skip_special=skip_special)
