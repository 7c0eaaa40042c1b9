"""The bodies of the OpenAI-style API: which fields exist, their types and their bounds.

Owns everything that can be said of a body without a tokenizer: strict types, ranges, the fields
that are refused by name, and how a fault is named (``messages[0].content``). It knows neither
HTTP nor what the fields become (``deployments.openai_convert``).

Three rules hold for all fields. ``null`` means absent. A field that nobody knows is ignored. A
field that would change the answer but is not offered is refused by name, unless its value asks
for nothing (``0``, ``""``, ``[]``, ``false`` …). JSON has one kind of number, so ``5.0`` is the
integer 5; ``"5"`` and ``true`` are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    field_validator,
)

from chairlift.cluster.errors import InvalidRequest, UnsupportedParameter
from chairlift.deployments.json_body import read_object

__all__ = [
    "ChatBody",
    "CompletionBody",
    "GenerationBody",
    "Message",
    "TextPart",
    "parse_body",
]

MAX_MESSAGES = 2048
"""Messages of a chat and parts of a message, as at OpenAI. Pydantic holds the interpreter while it
reads a list, and others' tokens with it."""

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKENS = 1024
MAX_BIASES = 1024
MAX_LOGPROBS = 20
"""Likeliest tokens told beside each token: what OpenAI allows in chats, for both endpoints."""
MAX_SALT_CHARACTERS = 256
MAX_DEADLINE_MS = 2**53

BodyT = TypeVar("BodyT", bound="GenerationBody")

_EXACT_FLOAT = 2**53
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")
_NOTHING: tuple[object, ...] = (False, 0, "", [], {})
_UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "audio": _NOTHING,
    "bad_words": _NOTHING,
    "chat_template": _NOTHING,
    "continue_final_message": _NOTHING,
    "echo": _NOTHING,
    "function_call": (*_NOTHING, "none", "auto"),
    "functions": _NOTHING,
    "guided_choice": _NOTHING,
    "guided_grammar": _NOTHING,
    "guided_json": _NOTHING,
    "guided_regex": _NOTHING,
    "modalities": (*_NOTHING, ["text"]),
    "prediction": _NOTHING,
    "prompt_logprobs": (),
    "response_format": (*_NOTHING, {"type": "text"}),
    "structured_outputs": _NOTHING,
    "suffix": _NOTHING,
    "tool_choice": (*_NOTHING, "none", "auto"),
    "tools": _NOTHING,
    "top_logprobs": _NOTHING,
    "use_beam_search": _NOTHING,
    "web_search_options": _NOTHING,
}
"""Name → the values, besides null, that ask for nothing. An endpoint that has the field goes before
this table."""


def _whole(value: object) -> object:
    """``5.0`` to 5 where a float is exact; everything else goes on to the strict check."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT_FLOAT:
        return int(value)
    return value


def _false_is_absent(value: object) -> object:
    """For what is a number in one endpoint and a switch in the other."""
    return None if value is False else value


def _zero_is_absent(value: object) -> object:
    """For what is a word here and a number at vLLM, where 0 is the usual."""
    return None if type(value) in (int, float) and value == 0 else value


def _text_or_list(value: object) -> str | None:
    if isinstance(value, str):
        return "#text"
    return "#list" if isinstance(value, list) else None


def _prompt_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "#text"
    if not isinstance(value, list) or not value:
        return None
    first = value[0]
    if isinstance(first, str):
        return "#texts"
    if isinstance(first, list):
        return "#token_lists"
    return "#tokens" if type(first) is int else None


def _biases(value: object) -> dict[int, float]:
    """OpenAI writes the token ids as the keys of a JSON object, so as text."""
    if not isinstance(value, dict):
        raise _bad_bias("input should be a JSON object of token ids and numbers")
    if len(value) > MAX_BIASES:
        raise _bad_bias(f"has {len(value)} entries, of {MAX_BIASES} at most")
    for token, bias in value.items():
        if not _TOKEN_ID.fullmatch(token):
            raise _bad_bias(f"{token[:20]!r} is no token id")
        if type(bias) not in (int, float) or not -100 <= bias <= 100:
            raise _bad_bias(f"the bias of token {token} must be a number from -100 to 100")
    return {int(token): float(bias) for token, bias in value.items()}


def _bad_bias(message: str) -> InvalidRequest:
    return InvalidRequest(f"logit_bias: {message}", param="logit_bias")


def _one_of(kind: Any, expected: str) -> Discriminator:
    return Discriminator(kind, custom_error_type="wrong_type", custom_error_message=expected)


Integer = Annotated[int, BeforeValidator(_whole)]
PriorityName = Literal["interactive", "standard", "batch"]
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
NumLogprobs = Annotated[Integer, Field(ge=0, le=MAX_LOGPROBS)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stop = Annotated[
    Annotated[StopString, Tag("#text")]
    | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True), Tag("#list")],
    _one_of(_text_or_list, "Input should be a string or a list of strings"),
]
Prompt = Annotated[
    Annotated[str, Tag("#text")]
    | Annotated[list[str], Field(fail_fast=True), Tag("#texts")]
    | Annotated[TokenIds, Tag("#tokens")]
    | Annotated[list[TokenIds], Field(fail_fast=True), Tag("#token_lists")],
    _one_of(
        _prompt_kind,
        "Input should be a string, a list of strings, a list of token ids, or a list of such "
        "lists, and not empty",
    ),
]


class _Part(BaseModel):
    """What all JSON objects of the API share: strict types, unknown fields ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class TextPart(_Part):
    """One part of a message's content; text is the only kind that is offered."""

    type: Literal["text"]
    text: str


Content = Annotated[
    Annotated[str, Tag("#text")]
    | Annotated[
        list[TextPart],
        Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
        Tag("#list"),
    ],
    _one_of(_text_or_list, "Input should be a string or a list of text parts"),
]


class Message(_Part):
    """One turn of a conversation; only an assistant's may have no content."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content | None = None
    tool_calls: Any = None

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class StreamOptions(_Part):
    """How a streamed answer is written."""

    include_usage: bool | None = None


class GenerationBody(_Part):
    """The fields that both endpoints share."""

    model: str | None = None
    n: Annotated[Integer, Field(ge=1)] = 1
    best_of: Integer | None = None
    max_tokens: Annotated[Integer, Field(ge=1)] | None = None
    min_tokens: Annotated[Integer, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[Integer, Field(ge=-1)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    logit_bias: Annotated[dict[int, float], BeforeValidator(_biases)] = Field(default_factory=dict)
    allowed_token_ids: Annotated[TokenIds, Field(min_length=1)] | None = None
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: Stop = Field(default_factory=list)
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_TOKENS)] = Field(
        default_factory=list
    )
    ignore_eos: bool = False
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARACTERS)] | None = None
    priority: Annotated[PriorityName | None, BeforeValidator(_zero_is_absent)] = None
    deadline_ms: Annotated[Integer, Field(ge=1, le=MAX_DEADLINE_MS)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[Integer, Field(ge=1)] | None = None
    logprobs: bool = False
    top_logprobs: NumLogprobs = 0

    @field_validator("messages")
    @classmethod
    def _check_each(cls, messages: list[Message]) -> list[Message]:
        for index, message in enumerate(messages):
            if message.tool_calls:
                name = f"messages[{index}].tool_calls"
                raise UnsupportedParameter(f"{name}: not offered by this server", param=name)
            if message.content is None and message.role != "assistant":
                raise _fault(("messages", index, "content"), "Field required", "missing")
        return messages


class CompletionBody(GenerationBody):
    """POST /v1/completions; ``max_tokens`` 0 is for who wants nothing but the prompt's echo."""

    prompt: Prompt
    max_tokens: Annotated[Integer, Field(ge=0)] | None = None
    logprobs: Annotated[NumLogprobs | None, BeforeValidator(_false_is_absent)] = None
    echo: bool = False


def parse_body(kind: type[BodyT], body: bytes) -> BodyT:
    """Read a request body, UTF-8 encoded JSON, as ``kind``.

    Raises:
        InvalidRequest: the body is no JSON object or a field is wrong; ``param`` names it.
        UnsupportedParameter: a field asks for what this server does not offer.
    """
    fields = {name: value for name, value in read_object(body).items() if value is not None}
    for name, neutral in _UNSUPPORTED.items():
        if name not in fields or name in kind.model_fields:
            continue
        if not _asks_for_nothing(fields[name], neutral):
            raise UnsupportedParameter(f"{name}: not offered by this server", param=name)
    try:
        parsed = kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _fault(first["loc"], first["msg"], first["type"]) from None
    _check_combinations(parsed)
    return parsed


def _asks_for_nothing(value: object, neutral: tuple[object, ...]) -> bool:
    return value is not True and value in neutral


def _check_combinations(body: GenerationBody) -> None:
    if body.best_of is not None and body.best_of < body.n:
        raise InvalidRequest("best_of: must not be less than n", param="best_of")
    if body.best_of is not None and body.best_of > body.n:
        raise UnsupportedParameter("best_of: more than n is not offered", param="best_of")
    if isinstance(body, ChatBody) and body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs: needs logprobs to be true", param="top_logprobs")
    if isinstance(body, CompletionBody) and body.max_tokens == 0:
        if not body.echo:
            raise InvalidRequest("max_tokens: 0 is allowed only with echo", param="max_tokens")
        if body.min_tokens:
            raise InvalidRequest("min_tokens: must not be more than max_tokens", param="min_tokens")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest(
            "stream_options: allowed only when stream is true", param="stream_options"
        )


def _fault(location: tuple[int | str, ...], message: str, kind: str) -> InvalidRequest:
    """Name the place as a client would write it; the tags of unions are no part of it."""
    param = ""
    for step in location:
        if isinstance(step, int):
            param += f"[{step}]"
        elif not step.startswith("#"):
            param += f".{step}" if param else step
    code = "missing_required_parameter" if kind == "missing" else None
    if kind == "model_type":
        message = "Input should be a JSON object"
    return InvalidRequest(f"{param}: {message[0].lower()}{message[1:]}", param=param, code=code)
