"""The grammar of an output that calls, has to call, or whose calls have to fit.

Owns the rules; which form calls have is ``deployments.tool_formats``', what JSON schemas mean
``cluster.grammar``'s. Where text is free, all may come but what the reader would take for the begin
of a call: that begins one, which then has to be right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from chairlift.cluster.errors import InvalidRequest
from chairlift.cluster.grammar import embedded, grammar_fault
from chairlift.deployments.tool_formats import (
    ARGUMENTS_MARK,
    HERMES,
    LLAMA3,
    MISTRAL,
    ToolFormat,
)
from chairlift.deployments.tool_schema import ToolUse

__all__ = ["calling_grammar"]

SpecialToken: TypeAlias = Callable[[str], int | None]

_ANY = r"(.|\n)*"
_BLANKS = r"[ \t\r\n]*"
_ANY_OBJECT = {"type": "object"}


def calling_grammar(
    use: ToolUse,
    form: ToolFormat,
    answer: dict[str, Any] | bool | None,
    special_token: SpecialToken,
) -> str:
    """The grammar of an output that calls, or else, where it need not, fits ``answer``; "" for any.

    Args:
        use: what may be called.
        form: how.
        answer: a JSON schema; None for any text.
        special_token: finds the token that a mark is, where it is one.

    Raises:
        InvalidRequest: nothing could follow it.
    """
    free = not use.must and answer is None
    if free and not use.strict:
        return ""
    try:
        rules = _call_rules(use, form, special_token, every=not free)
        calls = _calls(use, form, special_token)
        if free:
            rules += _free_rules(use, form, calls, special_token)
        elif use.must or answer is None:
            rules.append(f"start: {calls}")
        else:
            rules += [f"start: {calls} | answer", f"answer: %json {embedded(answer)}"]
        grammar = "\n".join(rules)
        fault = grammar_fault(grammar)
    except ValueError as error:
        fault = str(error)
    if fault is not None:
        raise InvalidRequest(f"tools: {fault}", param="tools")
    return grammar


def _call_rules(
    use: ToolUse, form: ToolFormat, special_token: SpecialToken, *, every: bool
) -> list[str]:
    """``call``, one of the tools'; arguments fit where the tool is strict, or ``every`` one is."""
    names = list(use.callable)
    rules = ["call: " + " | ".join(f"call_{index}" for index in range(len(names)))]
    for index, name in enumerate(names):
        if form.arguments:
            head = f'{{"name": {json.dumps(name)}, "{form.arguments}": '
            rules.append(f'call_{index}: {json.dumps(head)} arguments_{index} "}}"')
        else:
            head = _named_head(name, form, special_token)
            rules.append(f"call_{index}: {head} arguments_{index}")
        schema = use.callable[name] if every or name in use.strict else _ANY_OBJECT
        rules.append(f"arguments_{index}: %json {embedded(schema)}")
    return rules


def _calls(use: ToolUse, form: ToolFormat, special_token: SpecialToken) -> str:
    """An output that is calls and nothing else."""
    token = special_token(form.mark) if form is MISTRAL else None
    between = json.dumps(form.between) if form.between else ""
    more = f"({between} call)*" if form.many and use.parallel else ""
    opens, closes = (json.dumps(mark) if mark else "" for mark in (form.opens, form.closes))
    mark = "" if token is None else f"<[{token}]>"
    return " ".join(filter(None, (mark, opens, "call", more, closes)))


def _free_rules(
    use: ToolUse, form: ToolFormat, calls: str, special_token: SpecialToken
) -> list[str]:
    """Text, or calls; of a form that may begin anywhere, calls with text around them."""
    if form is HERMES:
        often = "*" if use.parallel else "?"
        opens = form.opens.removeprefix(form.mark)
        return [
            f"start: (to_call {json.dumps(opens)} call {json.dumps(form.closes)}){often} TEXT",
            f"to_call[lazy]: /{_ANY}{re.escape(form.mark)}/",
            f"TEXT: /{_ANY}/ & ~/{_ANY}{re.escape(form.mark)}{_ANY}/",
        ]
    mark = re.escape(form.mark)
    begins = [r"\{"]
    if form is not LLAMA3:
        names = "|".join(map(re.escape, use.callable))
        begins = [rf"(\[{_BLANKS})?\{{", rf"({names})[A-Za-z0-9\[\]_]*{_BLANKS}\{{"]
    token = special_token(form.mark) if form is LLAMA3 else None
    tagged = calls if token is None else f"<[{token}]>? {calls}"
    begin = f"{_BLANKS}({mark})?{_BLANKS}({'|'.join(begins)})"
    return [f"start: {tagged} | TEXT", f"TEXT: /{_ANY}/ & ~/{begin}{_ANY}/"]


def _named_head(name: str, form: ToolFormat, special_token: SpecialToken) -> str:
    """A name with its marks: one terminal, but for those that are tokens, as free text is one."""
    head = json.dumps(f"{form.mark}{name}{ARGUMENTS_MARK}")
    for mark in (form.mark, ARGUMENTS_MARK):
        if (token := special_token(mark)) is not None:
            head = head.replace(mark, f'" <[{token}]> "')
    return head.removeprefix('"" ').removesuffix(' ""')
