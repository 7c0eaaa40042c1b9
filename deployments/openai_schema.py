"""The bodies of the OpenAI-style API: which fields exist, their types and their bounds.

Owns everything that can be said of a body without a tokenizer: strict types, ranges, the fields
that are refused by name, and how a fault is named (``messages[0].content``). It knows neither
HTTP nor what the fields become (``deployments.openai_convert``). The API's description is made
from these models and tables (``deployments.openapi``).

Four rules hold for all fields. ``null`` means absent. A field that nobody knows is refused, for it
may be a known one misspelt. A field that would change the answer but is not offered is refused by
name, unless its value asks for nothing (``0``, ``""``, ``[]``, ``false`` …). What is known and can
do no harm, such as ``user``, is ignored. JSON has one kind of number, so ``5.0`` is the integer 5;
``"5"`` and ``true`` are not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args

from pydantic import (
    BeforeValidator,
    Field,
    Tag,
    ValidationError,
    WithJsonSchema,
    field_validator,
)

from chairlift.cluster.errors import InvalidRequest, UnsupportedParameter
from chairlift.deployments.json_body import read_object
from chairlift.deployments.openai_messages import (
    MAX_MESSAGES,
    Message,
    Part,
    check_messages,
    one_of,
    text_or_list,
)
from chairlift.deployments.response_format import ResponseFormat
from chairlift.deployments.tool_schema import MAX_TOOLS, Tool, ToolChoice

__all__ = [
    "IGNORED",
    "UNSUPPORTED",
    "Body",
    "ChatBody",
    "CompletionBody",
    "GenerationBody",
    "parse_body",
]

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKENS = 1024
MAX_BIASES = 1024
MAX_LOGPROBS = 20
"""Likeliest tokens told beside each token: what OpenAI allows in chats, for both endpoints."""
MAX_SALT_CHARACTERS = 256
MAX_DEADLINE_MS = 2**53

BodyT = TypeVar("BodyT", bound=Part)
Body: TypeAlias = bytes | Mapping[str, Any]
"""A request body: UTF-8 encoded JSON, or what somebody else has read as the same fields."""

_EXACT_FLOAT = 2**53
_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}")
_NOTHING: tuple[object, ...] = (False, 0, "", [], {})
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (),
    "audio": _NOTHING,
    "bad_words": _NOTHING,
    "chat_template": _NOTHING,
    "chat_template_kwargs": _NOTHING,
    "continue_final_message": _NOTHING,
    "documents": _NOTHING,
    "echo": _NOTHING,
    "function_call": (*_NOTHING, "none", "auto"),
    "functions": _NOTHING,
    "guided_choice": _NOTHING,
    "guided_grammar": _NOTHING,
    "guided_json": _NOTHING,
    "guided_regex": _NOTHING,
    "include_stop_str_in_output": _NOTHING,
    "length_penalty": (1,),
    "modalities": (*_NOTHING, ["text"]),
    "moderation": _NOTHING,
    "prediction": _NOTHING,
    "prompt_logprobs": (),
    "reasoning_effort": (*_NOTHING, "none"),
    "response_format": (*_NOTHING, {"type": "text"}),
    "return_token_ids": _NOTHING,
    "return_tokens_as_token_ids": _NOTHING,
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structured_outputs": _NOTHING,
    "suffix": _NOTHING,
    "tool_choice": (*_NOTHING, "none", "auto"),
    "tools": _NOTHING,
    "top_logprobs": _NOTHING,
    "truncate_prompt_tokens": (),
    "use_beam_search": _NOTHING,
    "verbosity": (*_NOTHING, "medium"),
    "web_search_options": _NOTHING,
}
"""Name → the values, besides null, that ask for nothing. An endpoint that has the field goes before
this table."""

IGNORED = frozenset(
    (
        *("metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options"),
        *("prompt_cache_retention", "request_id", "safety_identifier", "service_tier", "store"),
        "user",
    )
)
"""Fields that change no answer: labels, and hints to a service of another make."""


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


WHOLE = BeforeValidator(_whole)
PriorityName = Literal["interactive", "standard", "batch"]
TokenIds = Annotated[list[int], Field(fail_fast=True)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
NumLogprobs = Annotated[int, Field(ge=0, le=MAX_LOGPROBS), WHOLE]
LogprobsOrOff = Annotated[
    NumLogprobs | None,
    BeforeValidator(_false_is_absent),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS},
                {"enum": [False, None]},
            ]
        }
    ),
]
Priority = Annotated[
    PriorityName | None,
    BeforeValidator(_zero_is_absent),
    WithJsonSchema({"enum": [*get_args(PriorityName), 0, None]}),
]
Biases = Annotated[
    dict[int, float],
    BeforeValidator(_biases),
    WithJsonSchema(
        {
            "type": "object",
            "maxProperties": MAX_BIASES,
            "patternProperties": {
                f"^({_TOKEN_ID.pattern})$": {"type": "number", "minimum": -100, "maximum": 100}
            },
            "additionalProperties": False,
        }
    ),
]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Stop = Annotated[
    Annotated[StopString, Tag("#text")]
    | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True), Tag("#list")],
    one_of(text_or_list, "Input should be a string or a list of strings"),
]
Prompt = Annotated[
    Annotated[str, Tag("#text")]
    | Annotated[list[str], Field(fail_fast=True), Tag("#texts")]
    | Annotated[TokenIds, Tag("#tokens")]
    | Annotated[list[TokenIds], Field(fail_fast=True), Tag("#token_lists")],
    one_of(
        _prompt_kind,
        "Input should be a string, a list of strings, a list of token ids, or a list of such "
        "lists, and not empty",
    ),
]


class StreamOptions(Part):
    """How a streamed answer is written."""

    include_usage: bool | None = None


class GenerationBody(Part):
    """The fields that both endpoints share."""

    model: str | None = None
    n: Annotated[int, Field(ge=1), WHOLE] = 1
    best_of: Annotated[int, WHOLE] | None = None
    max_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    min_tokens: Annotated[int, Field(ge=0), WHOLE] = 0
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1), WHOLE] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] = 1.0
    logit_bias: Biases = Field(default_factory=dict)
    allowed_token_ids: Annotated[TokenIds, Field(min_length=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**64 - 1), WHOLE] | None = None
    stop: Stop = Field(default_factory=list)
    stop_token_ids: Annotated[TokenIds, Field(max_length=MAX_STOP_TOKENS)] = Field(
        default_factory=list
    )
    ignore_eos: bool = False
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_SALT_CHARACTERS)] | None = None
    priority: Priority = None
    deadline_ms: Annotated[int, Field(ge=1, le=MAX_DEADLINE_MS), WHOLE] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None


class ChatBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1), WHOLE] | None = None
    logprobs: bool = False
    top_logprobs: NumLogprobs = 0
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @field_validator("messages")
    @classmethod
    def _check_each(cls, messages: list[Message]) -> list[Message]:
        check_messages(messages)
        return messages


class CompletionBody(GenerationBody):
    """POST /v1/completions; ``max_tokens`` 0 is for who wants nothing but the prompt's echo."""

    prompt: Prompt
    max_tokens: Annotated[int, Field(ge=0), WHOLE] | None = None
    logprobs: LogprobsOrOff = None
    echo: bool = False


def parse_body(kind: type[BodyT], body: Body) -> BodyT:
    """Read a request body as ``kind``.

    Raises:
        InvalidRequest: the body is no JSON object or a field is wrong; ``param`` names it.
        UnsupportedParameter: a field asks for what this server does not offer.
    """
    tree = read_object(body) if isinstance(body, bytes) else body
    fields = {name: value for name, value in tree.items() if value is not None}
    for name in [name for name in fields if name not in kind.model_fields]:
        _check_foreign(name, fields.pop(name))
    try:
        parsed = kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise _fault(first["loc"], first["msg"], first["type"]) from None
    if isinstance(parsed, GenerationBody):
        _check_combinations(parsed)
    return parsed


def _check_foreign(name: str, value: object) -> None:
    """A field that the endpoint does not have may ask for nothing, or be one to ignore."""
    if name in UNSUPPORTED:
        if not any(_is_same(value, neutral) for neutral in UNSUPPORTED[name]):
            raise UnsupportedParameter(f"{name}: not offered by this server", param=name)
    elif name not in IGNORED:
        name = name[:100]
        raise InvalidRequest(f"{name}: unknown field", param=name, code="unknown_parameter")


def _is_same(value: object, other: object) -> bool:
    """As JSON has it: ``true`` is not 1, but 1.0 is."""
    return value == other and isinstance(value, bool) is isinstance(other, bool)


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
