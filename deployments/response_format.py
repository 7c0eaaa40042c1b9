"""``response_format`` of a chat: what the answer has to look like.

Owns the field and the grammar that it becomes. A schema is checked here, as far as that goes
without the model's vocabulary; a replica may still find that it cannot follow it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from chairlift.cluster.errors import InvalidRequest
from chairlift.cluster.grammar import grammar_fault, json_grammar
from chairlift.deployments.openai_messages import Part

__all__ = ["ResponseFormat", "checked_grammar", "schema_of"]

Name = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]


class JsonSchema(Part):
    """A named schema; it is always kept to, whatever ``strict`` says."""

    name: Name
    description: str | None = None
    strict: bool | None = None
    schema_: Annotated[dict[str, Any] | bool, Field(alias="schema")]


class ResponseFormat(Part):
    """Text, any JSON object, or JSON that fits a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def schema_of(asked: ResponseFormat | None) -> dict[str, Any] | bool | None:
    """What the answer has to fit; None for any text. Raises InvalidRequest."""
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return {"type": "object"}
    if asked.json_schema is None:
        raise InvalidRequest(
            "response_format.json_schema: field required",
            param="response_format.json_schema",
            code="missing_required_parameter",
        )
    return asked.json_schema.schema_


def checked_grammar(schema: dict[str, Any] | bool, param: str) -> str:
    """The grammar of JSON that fits the schema; raises InvalidRequest that names ``param``."""
    try:
        grammar = json_grammar(schema)
        fault = grammar_fault(grammar)
    except ValueError as error:
        fault = str(error)
    if fault is not None:
        raise InvalidRequest(f"{param}: {fault}", param=param)
    return grammar
