"""How families of models write down what they call.

Owns three formats, which of them a model has, and the grammar of an output that has to call.
``deployments.tool_reader`` reads outputs.

    hermes    <tool_call>{"name": …, "arguments": {…}}</tool_call>   any number, with text before
    llama3    {"name": …, "parameters": {…}}                          one, or text
    mistral   [TOOL_CALLS][{"name": …, "arguments": {…}}, …]         a list, or text

Marks that are tokens for the model rather than text (``[TOOL_CALLS]``, ``<|python_tag|>``) do not
show in the text of an output.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from chairlift.cluster.errors import InvalidRequest
from chairlift.cluster.grammar import embedded, grammar_fault
from chairlift.deployments.tool_schema import ToolUse

__all__ = [
    "HERMES",
    "LLAMA3",
    "MISTRAL",
    "ToolFormat",
    "ToolFormatName",
    "calling_grammar",
    "chosen_format",
]

ToolFormatName = Literal["hermes", "llama3", "mistral"]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format.

    Attributes:
        mark: what tells calls from text; of ``llama3`` and ``mistral`` a token, and optional.
        opens, between, closes: what an output that has to call writes around its calls, besides a
            mark that is a token.
        arguments: the key of the arguments.
        anywhere: calls may follow text, and text may follow them; else an output is one or other.
        many: several calls may be made.
    """

    name: ToolFormatName
    mark: str
    opens: str
    between: str
    closes: str
    arguments: str
    anywhere: bool
    many: bool


HERMES = ToolFormat(
    "hermes",
    mark="<tool_call>",
    opens="<tool_call>\n",
    between="\n</tool_call>\n<tool_call>\n",
    closes="\n</tool_call>",
    arguments="arguments",
    anywhere=True,
    many=True,
)
LLAMA3 = ToolFormat(
    "llama3",
    mark="<|python_tag|>",
    opens="",
    between="",
    closes="",
    arguments="parameters",
    anywhere=False,
    many=False,
)
MISTRAL = ToolFormat(
    "mistral",
    mark="[TOOL_CALLS]",
    opens="[",
    between=", ",
    closes="]",
    arguments="arguments",
    anywhere=False,
    many=True,
)
_FORMATS = {each.name: each for each in (HERMES, LLAMA3, MISTRAL)}


def chosen_format(asked: ToolFormatName | Literal["auto"], template: str) -> ToolFormat:
    """What is asked for, else what the chat template writes; Hermes' where it says nothing."""
    if asked != "auto":
        return _FORMATS[asked]
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<tool_call>" not in template and (
        "<|python_tag|>" in template or '"parameters"' in template
    ):
        return LLAMA3
    return HERMES


def calling_grammar(
    use: ToolUse,
    form: ToolFormat,
    answer: dict[str, Any] | bool | None,
    special_token: Callable[[str], int | None],
) -> str:
    """The grammar of an output that calls, or else, where it need not, fits ``answer``; "" for any.

    Args:
        use: what may be called.
        form: how.
        answer: a JSON schema; None for any text.
        special_token: finds the token that a mark is, where it is one.
    """
    if not use.must and answer is None:
        return ""
    names = list(use.callable)
    rules = [
        f"start: {_start(use, form, special_token)}" + ("" if use.must else " | answer"),
        "call: " + " | ".join(f"call_{index}" for index in range(len(names))),
    ]
    for index, name in enumerate(names):
        head = f'{{"name": {json.dumps(name)}, "{form.arguments}": '
        rules.append(f'call_{index}: {json.dumps(head)} arguments_{index} "}}"')
        rules.append(f"arguments_{index}: %json {embedded(use.callable[name])}")
    if answer is not None and not use.must:
        rules.append(f"answer: %json {embedded(answer)}")
    grammar = "\n".join(rules)
    if (fault := grammar_fault(grammar)) is not None:
        raise InvalidRequest(f"tools: {fault}", param="tools")
    return grammar


def _start(use: ToolUse, form: ToolFormat, special_token: Callable[[str], int | None]) -> str:
    token = special_token(form.mark) if form is MISTRAL else None
    more = f"({json.dumps(form.between)} call)*" if form.many and use.parallel else ""
    opens, closes = (json.dumps(mark) if mark else "" for mark in (form.opens, form.closes))
    mark = "" if token is None else f"<[{token}]>"
    return " ".join(filter(None, (mark, opens, "call", more, closes)))
