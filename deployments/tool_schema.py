"""``tools``, ``tool_choice`` and ``parallel_tool_calls`` of a chat.

Owns the fields and what they ask for together, a ``ToolUse``. How a model writes calls down is
``deployments.tool_formats``'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from chairlift.cluster.errors import InvalidRequest
from chairlift.deployments.openai_messages import Part, one_of
from chairlift.deployments.response_format import checked_grammar

__all__ = ["MAX_TOOLS", "NamedTool", "Tool", "ToolChoice", "ToolUse", "read_tools"]

MAX_TOOLS = 128
"""As at OpenAI."""

FunctionName = Annotated[str, Field(pattern="^[A-Za-z0-9_.-]{1,64}$")]


class Function(Part):
    """A function that may be called; ``parameters`` is the JSON schema of its arguments.

    With ``strict`` they fit it, also where the model need not call.
    """

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Part):
    """Functions are the only tools."""

    type: Literal["function"]
    function: Function


class FunctionChoice(Part):
    """A function by its name."""

    name: str


class NamedTool(Part):
    """The one function that must be called."""

    type: Literal["function"]
    function: FunctionChoice


def _kind(value: object) -> str | None:
    if isinstance(value, str):
        return "#word"
    return "#named" if isinstance(value, dict) else None


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("#word")]
    | Annotated[NamedTool, Tag("#named")],
    one_of(_kind, "Input should be 'none', 'auto', 'required', or a function"),
]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a model may call, and must.

    Attributes:
        tools: for the template, as OpenAI writes them.
        callable: name → schema of the arguments of what may be called.
        must: at least one call is to be made, and no text.
        parallel: several calls may be made.
        strict: names of what may be called with arguments that fit and no others.
    """

    tools: tuple[dict[str, Any], ...]
    callable: dict[str, dict[str, Any]]
    must: bool
    parallel: bool
    strict: frozenset[str] = frozenset()


def read_tools(
    tools: Sequence[Tool], choice: ToolChoice | None, parallel: bool | None
) -> ToolUse | None:
    """What the fields ask for together; None for no tools. Raises InvalidRequest."""
    if choice is None:
        choice = "auto" if tools else "none"
    if not tools and choice not in ("none", "auto"):
        raise InvalidRequest("tool_choice: there are no tools", param="tool_choice")
    schemas: dict[str, dict[str, Any]] = {}
    for index, tool in enumerate(tools):
        function, where = tool.function, f"tools[{index}].function"
        if function.name in schemas:
            raise InvalidRequest(f"{where}.name: is taken", param=f"{where}.name")
        schemas[function.name] = function.parameters or {"type": "object", "properties": {}}
    if choice == "none" or not tools:
        return None
    if isinstance(choice, NamedTool):
        name = choice.function.name
        if name not in schemas:
            raise InvalidRequest(
                f"tool_choice.function.name: {name[:64]!r} is none of the tools",
                param="tool_choice.function.name",
            )
        schemas = {name: schemas[name]}
    must = choice != "auto"
    strict = frozenset(
        tool.function.name
        for tool in tools
        if tool.function.name in schemas and tool.function.strict
    )
    for index, tool in enumerate(tools):
        name = tool.function.name
        if name in strict or (must and name in schemas):  # then the arguments have to fit
            checked_grammar(schemas[name], f"tools[{index}].function.parameters")
    return ToolUse(
        tools=tuple(tool.model_dump(exclude_none=True) for tool in tools),
        callable=schemas,
        must=must,
        parallel=parallel is not False and not isinstance(choice, NamedTool),
        strict=strict,
    )
