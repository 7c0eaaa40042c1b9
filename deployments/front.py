"""What every listener of one router has in common: the model, who may use it, and the converter.

Owns how a request becomes something that can be run, whatever it came by; so HTTP and gRPC check
and mean the same. It knows no protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, TypeAlias

from chairlift.cluster.tenants import Tenants
from chairlift.deployments.openai_convert import Converter, Generation
from chairlift.deployments.openai_logprobs import TokenForms
from chairlift.deployments.openai_schema import Body
from chairlift.deployments.request_terms import Caller
from chairlift.deployments.token_desk import TokenDesk
from chairlift.deployments.tool_formats import ToolFormatName
from chairlift.router.chat_template import ChatTemplate
from chairlift.router.router import Router
from chairlift.router.tokenizer import Tokenizer

__all__ = ["INLINE_BODY", "Convert", "Front"]

INLINE_BODY = 4096
"""Bytes; a longer body is read and tokenised in a thread, so that others' tokens flow on."""

_WITH_SCHEMA = ("response_format", "tools")
_WITH_SCHEMA_IN_JSON = (b'"json_schema"', b'"tools"')
"""Fields whose schemas take a while to check, however short they are."""

Convert: TypeAlias = Callable[[Body, Caller, int], Generation]


@dataclass(eq=False)
class Front:
    """One model over one router.

    Attributes:
        router: owned by whoever made it, who also closes it.
        template: None for a model that cannot chat.
        model_name: what clients call the model.
        context_length: tokens of a prompt and its answer at most; the replicas may allow less.
        max_choices: of one request, prompts times ``n``.
        tenants: who may use it.
        tool_format: how the model writes calls; ``auto``: as its template does.
    """

    router: Router
    tokenizer: Tokenizer
    template: ChatTemplate | None
    _: KW_ONLY
    model_name: str
    context_length: int
    max_choices: int
    tenants: Tenants
    tool_format: ToolFormatName | Literal["auto"] = "auto"
    converter: Converter = field(init=False)
    forms: TokenForms = field(init=False)
    tokens: TokenDesk = field(init=False)

    def __post_init__(self) -> None:
        self.converter = Converter(
            self.tokenizer,
            self.template,
            model_name=self.model_name,
            max_choices=self.max_choices,
            tool_format=self.tool_format,
        )
        self.forms = TokenForms(self.tokenizer)
        self.tokens = TokenDesk(self.tokenizer, self.converter)

    @property
    def ready(self) -> bool:
        """At least one replica is live, or would be started for who asks."""
        return self.router.may_sleep or any(view.ready for view in self.router.replicas())

    @property
    def limit(self) -> int:
        """Tokens of a prompt and its answer at most, as things stand."""
        replicas = self.router.max_sequence_tokens
        return self.context_length if replicas is None else min(replicas, self.context_length)

    async def convert(
        self, convert: Convert, body: Body, caller: Caller, *, size: int
    ) -> Generation:
        """What ``convert``, of the converter, makes of a body that took ``size`` bytes.

        In a thread, unless that is quick.
        """
        if size <= INLINE_BODY and not _has_schema(body):
            return convert(body, caller, self.limit)
        return await asyncio.to_thread(convert, body, caller, self.limit)


def _has_schema(body: Body) -> bool:
    if isinstance(body, bytes):
        return any(name in body for name in _WITH_SCHEMA_IN_JSON)
    return any(name in body for name in _WITH_SCHEMA)
