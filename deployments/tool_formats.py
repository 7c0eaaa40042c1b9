"""How families of models write down what they call.

Owns four formats and which of them a model has. ``deployments.tool_grammar`` binds outputs to them,
``deployments.tool_reader`` reads them.

    hermes        <tool_call>{"name": …, "arguments": {…}}</tool_call>   any number, text before
    llama3        {"name": …, "parameters": {…}}                          one, or text
    mistral       [TOOL_CALLS][{"name": …, "arguments": {…}}, …]         a list, or text
    mistral_args  [TOOL_CALLS]name[ARGS]{…}                               any number, or text

Marks that are tokens for the model rather than text (``[TOOL_CALLS]``, ``<|python_tag|>``) do not
show in the text of an output.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ARGUMENTS_MARK",
    "HERMES",
    "LLAMA3",
    "MISTRAL",
    "MISTRAL_ARGS",
    "ToolFormat",
    "ToolFormatName",
    "chosen_format",
]

ToolFormatName = Literal["hermes", "llama3", "mistral", "mistral_args"]

ARGUMENTS_MARK = "[ARGS]"
"""Between a name and its arguments, where names stand alone."""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One format.

    Attributes:
        mark: what tells calls from text; of ``llama3`` and Mistral's a token, and optional.
        opens, between, closes: what an output that has to call writes around its calls, besides a
            mark that is a token.
        arguments: the key of the arguments; "" where the name stands before them.
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

    def written(self, name: str, arguments: object) -> str:
        """A call, as the model would write it where its marks are text."""
        if not self.arguments:
            return f"{self.mark}{name}{ARGUMENTS_MARK}{json.dumps(arguments)}"
        call = json.dumps({"name": name, self.arguments: arguments})
        return self.opens + call + self.closes


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
MISTRAL_ARGS = ToolFormat(
    "mistral_args",
    mark="[TOOL_CALLS]",
    opens="",
    between="",
    closes="",
    arguments="",
    anywhere=False,
    many=True,
)
_FORMATS = {each.name: each for each in (HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS)}


def chosen_format(asked: ToolFormatName | Literal["auto"], template: str) -> ToolFormat:
    """What is asked for, else what the chat template writes; Hermes' where it says nothing."""
    if asked != "auto":
        return _FORMATS[asked]
    if "[TOOL_CALLS]" in template:
        return MISTRAL_ARGS if ARGUMENTS_MARK in template else MISTRAL
    if "<tool_call>" not in template and (
        "<|python_tag|>" in template or '"parameters"' in template
    ):
        return LLAMA3
    return HERMES
