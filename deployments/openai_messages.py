"""The messages of a chat: which forms they may have, and how templates want them.

Owns types and bounds of one turn, and what of it changes the answer but is not offered. It knows
neither the other fields of a body (``deployments.openai_schema``) nor any template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag

from chairlift.cluster.errors import InvalidRequest, UnsupportedParameter
from chairlift.deployments.json_body import read_object

__all__ = [
    "MAX_MESSAGES",
    "Message",
    "Part",
    "TextPart",
    "ToolCall",
    "check_messages",
    "one_of",
    "text_or_list",
]

MAX_MESSAGES = 2048
"""Messages of a chat and parts of a message, as at OpenAI. Pydantic holds the interpreter while it
reads a list, and others' tokens with it."""
MAX_TOOL_CALLS = 128


def one_of(kind: Any, expected: str) -> Discriminator:
    """Tells the kinds of a field apart; ``expected`` is said where it is none of them."""
    return Discriminator(kind, custom_error_type="wrong_type", custom_error_message=expected)


def text_or_list(value: object) -> str | None:
    """The tag of a field that is text or a list."""
    if isinstance(value, str):
        return "#text"
    return "#list" if isinstance(value, list) else None


class Part(BaseModel):
    """What all JSON objects within a body share: strict types, unknown fields ignored."""

    model_config = ConfigDict(
        strict=True,
        extra="ignore",
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class TextPart(Part):
    """One part of a message's content; text is the only kind that is offered."""

    type: Literal["text"]
    text: str


class FunctionCall(Part):
    """Which function was called, with which arguments: a JSON object, as text."""

    name: Annotated[str, Field(min_length=1)]
    arguments: str = ""


class ToolCall(Part):
    """A call that the model made."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


Content = Annotated[
    Annotated[str, Tag("#text")]
    | Annotated[
        list[TextPart],
        Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
        Tag("#list"),
    ],
    one_of(text_or_list, "Input should be a string or a list of text parts"),
]


class Message(Part):
    """One turn of a conversation.

    Only an assistant's may have no content, and only an assistant's may have tool calls. A tool's
    tells which call it answers. Fields that other servers write into an assistant's turn are
    ignored, unless they hold what the model would have to read.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TOOL_CALLS)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: Any = None
    audio: Any = None
    function_call: Any = None

    @property
    def text(self) -> str:
        """The content as one string."""
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""

    def for_template(self) -> dict[str, Any]:
        """As templates want it: what it does not have is not there, arguments are objects."""
        told = {
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "reasoning_content": self.reasoning_content,
            "tool_calls": [_call_for_template(call) for call in self.tool_calls or ()],
        }
        return {
            "role": self.role,
            "content": self.text,
            **{name: value for name, value in told.items() if value},
        }


def check_messages(messages: Sequence[Message]) -> None:
    """What depends on the role; raises InvalidRequest with the field's place."""
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        for name in ("refusal", "audio", "function_call"):
            if getattr(message, name):
                _refuse(f"{place}.{name}")
        if message.tool_calls and message.role != "assistant":
            raise InvalidRequest(
                f"{place}.tool_calls: only an assistant's message may have them",
                param=f"{place}.tool_calls",
            )
        if message.content is None and message.role != "assistant":
            _miss(f"{place}.content")
        if message.role == "tool" and message.tool_call_id is None:
            _miss(f"{place}.tool_call_id")


def _refuse(place: str) -> None:
    raise UnsupportedParameter(f"{place}: not offered by this server", param=place)


def _miss(place: str) -> None:
    raise InvalidRequest(f"{place}: field required", param=place, code="missing_required_parameter")


def _call_for_template(call: ToolCall) -> Mapping[str, Any]:
    function = {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
    return {"id": call.id, "type": call.type, "function": function}


def _arguments(text: str) -> object:
    """The object that templates write as the model once did; what a model botched stays text."""
    try:
        return read_object(text.encode()) if text else {}
    except InvalidRequest:
        return text
