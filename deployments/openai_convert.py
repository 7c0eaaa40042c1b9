"""From the bodies of the OpenAI-style API to ``cluster.protocol``.

Owns the meaning of the fields: defaults, the chat template, tokens, and every limit that needs
to know them. A ``Generation`` that leaves here cannot be invalid. It knows neither HTTP nor
streaming, and no router: how long a sequence may get is passed in, since that changes with the
replicas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from chairlift.cluster.errors import InvalidRequest, NotFound
from chairlift.cluster.protocol import Request
from chairlift.cluster.tenants import ANONYMOUS, Tenant
from chairlift.deployments.echo import Echo, make_echo
from chairlift.deployments.openai_messages import Message
from chairlift.deployments.openai_response import Api
from chairlift.deployments.openai_sampling import check_token_ids, read_sampling, read_seeds
from chairlift.deployments.openai_schema import (
    Body,
    ChatBody,
    CompletionBody,
    GenerationBody,
    parse_body,
)
from chairlift.deployments.request_terms import Caller, read_deadline, read_priority, salt_for
from chairlift.deployments.structured import Structure, Structuring
from chairlift.deployments.tool_formats import ToolFormatName
from chairlift.deployments.tool_schema import ToolUse

__all__ = ["ChatRenderer", "Converter", "Generation", "TextEncoder"]

DEFAULT_COMPLETION_TOKENS = 16
"""What OpenAI's completions endpoint generates where nothing is asked."""

_ANY_FORM = Structure()

PROBE_CHARACTERS = 16
"""Per token that would fit: how much of a very long text is tokenised to see whether it could."""


class TextEncoder(Protocol):
    """What is needed of ``router.tokenizer.Tokenizer``."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def strips_space(self) -> bool: ...

    def encode(self, text: str, *, add_special: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...

    def is_special(self, id_: int) -> bool: ...

    def token_bytes(self, id_: int, *, skip_special: bool = True) -> bytes: ...


class ChatRenderer(Protocol):
    """What is needed of ``router.chat_template.ChatTemplate``."""

    @property
    def source(self) -> str: ...

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class Generation:
    """An HTTP request that can be run.

    Attributes:
        requests: one for each prompt, all with the same ``n``; choice ``c`` of prompt ``p`` is
            the response's choice ``p × n + c``.
        stop: texts that end a choice and are no part of it.
        stream, include_usage: how to answer.
        echo: for each prompt, what comes before the text of its choices; empty for nothing.
        scores_only: of the output, nothing is wanted; the one token that has to be generated is
            neither told nor counted.
        tenant: in whose name all of the requests are.
        deadline_s: seconds to the first token at most; None where the client does not say.
        structure: which form the answer has to have.
    """

    api: Api
    requests: tuple[Request, ...]
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    echo: tuple[Echo, ...] = ()
    scores_only: bool = False
    tenant: Tenant = ANONYMOUS
    deadline_s: float | None = None
    structure: Structure = _ANY_FORM

    @property
    def n(self) -> int:
        """Choices of each prompt."""
        return self.requests[0].n

    @property
    def num_choices(self) -> int:
        return len(self.requests) * self.n

    @property
    def with_logprobs(self) -> bool:
        return self.requests[0].sampling.logprobs is not None

    @property
    def seeds(self) -> tuple[int, ...]:
        """One for each prompt."""
        return tuple(request.sampling.seed for request in self.requests)


class Converter:
    """Turns bodies into generations, for one model."""

    def __init__(
        self,
        tokenizer: TextEncoder,
        template: ChatRenderer | None,
        *,
        model_name: str,
        max_choices: int,
        tool_format: ToolFormatName | Literal["auto"] = "auto",
    ) -> None:
        self._tokenizer = tokenizer
        self._template = template
        source = "" if template is None else template.source
        self._structuring = Structuring(tool_format, source, tokenizer)
        self._model_name = model_name
        self._max_choices = max_choices
        self._longest_token = max(
            len(tokenizer.token_bytes(id_, skip_special=False))
            for id_ in range(tokenizer.vocab_size)
        )

    def chat(self, body: Body, caller: Caller, limit: int) -> Generation:
        """POST /v1/chat/completions, whose sequences may have ``limit`` tokens.

        Raises InvalidRequest or NotFound.
        """
        chat = parse_body(ChatBody, body)
        self.check_model(chat.model)
        self._check_choices(1, chat.n)
        structure = self._structuring.read(chat)
        prompt = self.chat_prompt(chat, limit, structure.use)
        if chat.max_completion_tokens is not None:
            room = _Room(limit, chat.max_completion_tokens, "max_completion_tokens")
        else:
            room = _Room(limit, chat.max_tokens, "max_tokens")
        sized = [(prompt, room.left(prompt, "messages"))]
        return self._generation(Api.CHAT, chat, caller, sized, structure)

    def chat_text(
        self,
        messages: Sequence[Message],
        use: ToolUse | None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """What the model reads of a chat; raises InvalidRequest."""
        if self._template is None:
            raise InvalidRequest(
                "messages: the model has no chat template; send a prompt, as to /v1/completions",
                param="messages",
            )
        told = [message.for_template() for message in messages]
        return self._template.render(
            self._structuring.messages(told, use),
            add_generation_prompt=add_generation_prompt,
            tools=None if use is None else use.tools,
        )

    def chat_prompt(self, chat: ChatBody, limit: int, use: ToolUse | None = None) -> list[int]:
        """The tokens of a conversation; InvalidRequest where they would be more than ``limit``."""
        self._check_size(sum(len(message.text) for message in chat.messages), "messages", limit)
        text = self.chat_text(chat.messages, use)
        return self._encode(text, "messages", limit, add_special=False)

    def completion(self, body: Body, caller: Caller, limit: int) -> Generation:
        """POST /v1/completions; as ``chat``."""
        completion = parse_body(CompletionBody, body)
        self.check_model(completion.model)
        scores_only = completion.max_tokens == 0
        asked = 1 if scores_only else completion.max_tokens
        room = _Room(limit, asked, "max_tokens", DEFAULT_COMPLETION_TOKENS)
        prompts = _named_prompts(completion.prompt)
        self._check_choices(len(prompts), completion.n)
        sized = []
        for name, prompt in prompts:
            if isinstance(prompt, str):
                tokens = self._encode(prompt, name, limit, add_special=True)
            else:
                tokens = prompt
            sized.append((tokens, room.left(tokens, name)))
            check_token_ids(tokens, name, self._tokenizer.vocab_size)
        generation = self._generation(Api.COMPLETION, completion, caller, sized)
        if not completion.echo:
            return generation
        echo = tuple(
            make_echo(self._tokenizer, prompt, request)
            for (_, prompt), request in zip(prompts, generation.requests, strict=True)
        )
        return replace(generation, echo=echo, scores_only=scores_only)

    def check_model(self, name: str | None) -> None:
        """Raises NotFound unless ``name`` is the served model's, or left out."""
        if name is not None and name != self._model_name:
            raise NotFound(
                f"model: {name[:200]!r} is not served here; {self._model_name!r} is",
                param="model",
                code="model_not_found",
            )

    def _check_choices(self, prompts: int, n: int) -> None:
        """Counts are checked before anything is tokenised."""
        if prompts > self._max_choices:
            raise InvalidRequest(
                f"prompt: {prompts} prompts, but one request may have {self._max_choices}",
                param="prompt",
            )
        if prompts * n > self._max_choices:
            raise InvalidRequest(
                f"n: one request may have {self._max_choices} choices, prompts times n", param="n"
            )

    def _encode(self, text: str, param: str, limit: int, *, add_special: bool) -> list[int]:
        if not text:
            raise InvalidRequest(f"{param}: must not be empty", param=param)
        self._check_size(len(text), param, limit)
        probe = text[: limit * PROBE_CHARACTERS]
        if len(probe) < len(text):
            # Only near the cut can the probe's tokens differ from the whole text's, so twice too
            # many are proof enough.
            if len(self._tokenizer.encode(probe, add_special=False)) > 2 * limit:
                raise _too_long(param, limit)
        return self._tokenizer.encode(text, add_special=add_special)

    def _check_size(self, characters: int, param: str, limit: int) -> None:
        """Refuse, at no cost, what would not fit if all tokens were the longest one."""
        if characters > limit * self._longest_token:
            raise _too_long(param, limit)

    def _generation(
        self,
        api: Api,
        body: GenerationBody,
        caller: Caller,
        prompts: Sequence[tuple[list[int], int]],
        structure: Structure = _ANY_FORM,
    ) -> Generation:
        """``prompts``: tokens and ``max_tokens`` of each."""
        smallest = min(max_tokens for _, max_tokens in prompts)
        if body.min_tokens > smallest:
            raise InvalidRequest(
                f"min_tokens: must not be more than max_tokens, here {smallest}", param="min_tokens"
            )
        sampling = read_sampling(body, self._tokenizer.vocab_size)
        sampling = replace(sampling, grammar=structure.grammar)
        tenant, options = caller.tenant, body.stream_options
        priority = read_priority(tenant, body.priority)
        return Generation(
            api=api,
            requests=tuple(
                Request(
                    id=caller.request_id,
                    prompt=tuple(prompt),
                    n=body.n,
                    sampling=replace(sampling, max_tokens=max_tokens, seed=seed),
                    tenant=tenant.name,
                    cache_salt=salt_for(tenant, body.cache_salt or ""),
                    priority=priority,
                    weight=tenant.weight,
                    traceparent=caller.traceparent,
                )
                for (prompt, max_tokens), seed in zip(
                    prompts, read_seeds(body, len(prompts)), strict=True
                )
            ),
            stop=tuple(dict.fromkeys([body.stop] if isinstance(body.stop, str) else body.stop)),
            stream=body.stream,
            include_usage=options is not None and bool(options.include_usage),
            tenant=tenant,
            deadline_s=read_deadline(caller, body.deadline_ms),
            structure=structure,
        )


@dataclass(frozen=True, slots=True)
class _Room:
    """How many tokens a sequence may have, and how many of them a client wants generated.

    Attributes:
        limit: prompt plus output at most.
        asked: None where the client left it out; then ``default``, or all that is left.
        param: the field that asked.
    """

    limit: int
    asked: int | None
    param: str
    default: int | None = None

    def left(self, prompt: Sequence[int], param: str) -> int:
        """``max_tokens`` after ``prompt``, which the client calls ``param``."""
        if not prompt:
            raise InvalidRequest(f"{param}: must not be empty", param=param)
        left = self.limit - len(prompt)
        if left < 1:
            raise InvalidRequest(
                f"{param}: has {len(prompt)} tokens, which leaves no room for an answer; both "
                f"together may have {self.limit}",
                param=param,
                code="context_length_exceeded",
            )
        if self.asked is None:
            return left if self.default is None else min(self.default, left)
        if self.asked > left:
            raise InvalidRequest(
                f"{self.param}: at most {left} after a prompt of {len(prompt)} tokens; both "
                f"together may have {self.limit}",
                param=self.param,
                code="context_length_exceeded",
            )
        return self.asked


def _too_long(param: str, limit: int) -> InvalidRequest:
    return InvalidRequest(
        f"{param}: more than the {limit} tokens that prompt and answer may have together",
        param=param,
        code="context_length_exceeded",
    )


def _named_prompts(prompt: str | list[str] | list[int] | list[list[int]]) -> list[tuple[str, Any]]:
    """Each prompt, a text or token ids, with the name that a client would give it."""
    if isinstance(prompt, str) or isinstance(prompt[0], int):
        return [("prompt", prompt)]
    return [(f"prompt[{index}]", one) for index, one in enumerate(prompt)]
