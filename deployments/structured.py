"""What a chat asks of the form of its answer: a schema, calls, or both.

Owns how ``response_format`` and the fields on tools come together: the grammar of the output, and
what the model is told of its tools where its template does not tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from chairlift.cluster.errors import InvalidRequest
from chairlift.deployments.openai_schema import ChatBody
from chairlift.deployments.response_format import checked_grammar, schema_of
from chairlift.deployments.tool_formats import HERMES, ToolFormat, ToolFormatName, chosen_format
from chairlift.deployments.tool_grammar import calling_grammar
from chairlift.deployments.tool_schema import ToolUse, read_tools

__all__ = ["Structure", "Structuring"]

_ALONE = ("ignore_eos", "allowed_token_ids")
"""Fields that say, as a grammar does, what may come and where the output ends."""


@dataclass(frozen=True, slots=True)
class Structure:
    """The form of one answer.

    Attributes:
        grammar: that the output follows; "" for none.
        asked_by: the field that asks for it.
        use: of tools; None for none.
        form: of calls.
    """

    grammar: str = ""
    asked_by: str = "response_format"
    use: ToolUse | None = None
    form: ToolFormat = HERMES


class Marks(Protocol):
    """What is needed of ``router.tokenizer.Tokenizer``."""

    def encode(self, text: str, *, add_special: bool) -> list[int]: ...

    def is_special(self, id_: int) -> bool: ...


class Structuring:
    """Reads structures, for one model.

    Args:
        form: how the model writes calls; ``auto``: as its template does.
        template: source of the model's chat template.
        tokenizer: the model's.
    """

    def __init__(
        self, form: ToolFormatName | Literal["auto"], template: str, tokenizer: Marks
    ) -> None:
        self._form = chosen_format(form, template)
        self._tells_tools = "tools" in template
        self._tokenizer = tokenizer

    def read(self, chat: ChatBody) -> Structure:
        """Raises InvalidRequest."""
        schema = schema_of(chat.response_format)
        use = read_tools(chat.tools, chat.tool_choice, chat.parallel_tool_calls)
        if use is not None:
            grammar, asked_by = calling_grammar(use, self._form, schema, self._mark), "tools"
        elif schema is not None:
            place = "response_format"
            if chat.response_format is not None and chat.response_format.json_schema is not None:
                place = "response_format.json_schema.schema"
            grammar, asked_by = checked_grammar(schema, place), place
        else:
            return Structure()
        if grammar:
            for name in _ALONE:
                if getattr(chat, name):
                    raise InvalidRequest(f"{name}: not together with {asked_by}", param=name)
        return Structure(grammar, asked_by, use, self._form)

    def messages(
        self, messages: Sequence[Mapping[str, Any]], use: ToolUse | None
    ) -> list[Mapping[str, Any]]:
        """As the template is to have them: where it knows no tools, calls are text."""
        if self._tells_tools:
            return list(messages)
        told = [self._as_text(message) for message in messages]
        return told if use is None else _with_tools(told, use, self._form)

    def _as_text(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        if message["role"] == "tool":
            content = f"<tool_response>\n{message['content']}\n</tool_response>"
            return {"role": "user", "content": content}
        functions = (call["function"] for call in message.get("tool_calls", ()))
        calls = [self._form.written(each["name"], each["arguments"]) for each in functions]
        if not calls:
            return message
        return {"role": message["role"], "content": "\n".join([message["content"], *calls]).strip()}

    def _mark(self, text: str) -> int | None:
        tokens = self._tokenizer.encode(text, add_special=False)
        if len(tokens) == 1 and self._tokenizer.is_special(tokens[0]):
            return tokens[0]
        return None


def _with_tools(
    messages: list[Mapping[str, Any]], use: ToolUse, form: ToolFormat
) -> list[Mapping[str, Any]]:
    """The system's message, the first, also tells what can be called, and how."""
    example = form.written("<name>", {"<argument>": "<value>"})
    functions = "\n".join(json.dumps(tool["function"]) for tool in use.tools)
    told = f"You can call these functions:\n{functions}\nTo call one, answer:\n{example}"
    first = messages[0]
    if first["role"] not in ("system", "developer"):
        return [{"role": "system", "content": told}, *messages]
    return [{**first, "content": f"{first['content']}\n\n{told}"}, *messages[1:]]
