import json

import pytest

from chairlift.deployments.tool_formats import (
    HERMES,
    LLAMA3,
    MISTRAL,
    calling_grammar,
    chosen_format,
)
from chairlift.deployments.tool_schema import ToolUse
from support.grammars import END, byte_grammars, texts_after

GRAMMARS = byte_grammars()
ONE = {"type": "object", "properties": {"at": {"enum": [1, 2]}}, "additionalProperties": False}
SCHEMAS = {"look": ONE | {"required": ["at"]}, "tell": ONE}
CALL = '{"name": "look", "arguments": {"at": 1}}'


def use(*, must=True, parallel=True):
    return ToolUse((), SCHEMAS, must, parallel)


def after(grammar, text):
    return texts_after(GRAMMARS.follow(grammar), text.encode())


@pytest.mark.parametrize(
    ("asked", "template", "form"),
    [
        ("auto", "{{ messages }}", HERMES),
        ("auto", '… <tool_call> … "parameters" …', HERMES),
        ("auto", '… {"name": function name, "parameters": …', LLAMA3),
        ("auto", "… <|python_tag|> …", LLAMA3),
        ("auto", "… [TOOL_CALLS] …", MISTRAL),
        ("llama3", "… [TOOL_CALLS] …", LLAMA3),
    ],
)
def test_the_template_tells_the_format_unless_somebody_does(asked, template, form):
    assert chosen_format(asked, template) is form


@pytest.mark.parametrize(
    ("form", "begin", "end"),
    [
        (HERMES, f"<tool_call>\n{CALL}", "\n</tool_call>"),
        (LLAMA3, CALL.replace("arguments", "parameters"), ""),
        (MISTRAL, f"[{CALL}", "]"),
    ],
)
def test_who_has_to_call_writes_a_call_and_then_ends_or_writes_another(form, begin, end):
    grammar = calling_grammar(use(), form, None, lambda mark: None)
    assert END not in after(grammar, "") and END not in after(grammar, begin[:-1])
    behind = after(grammar, begin + end)
    assert END in behind
    one = calling_grammar(use(parallel=False), form, None, lambda mark: None)
    assert after(one, begin + end) == {END}
    assert (len(after(grammar, begin)) > len(after(one, begin))) or form is not MISTRAL
    assert (len(behind) > 1) == (form is HERMES)


def test_a_mark_that_is_a_token_comes_first():
    grammar = calling_grammar(use(), MISTRAL, None, lambda mark: END if "TOOL" in mark else None)
    assert f"<[{END}]>" in grammar


def test_who_may_call_is_free_unless_the_answer_has_a_form():
    assert calling_grammar(use(must=False), HERMES, None, lambda mark: None) == ""
    grammar = calling_grammar(use(must=False), HERMES, {"type": "boolean"}, lambda mark: None)
    assert after(grammar, "") == set(b"<tf")
    assert after(grammar, "true") == {END}
    assert json.loads(CALL)
