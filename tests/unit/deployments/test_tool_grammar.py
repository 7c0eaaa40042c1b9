import json
from dataclasses import replace
from random import Random

import pytest

from chairlift.cluster.errors import InvalidRequest
from chairlift.deployments.tool_formats import HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS
from chairlift.deployments.tool_grammar import calling_grammar
from chairlift.deployments.tool_reader import ToolReader, whole_calls
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
    ("form", "begin", "end"),
    [
        (HERMES, f"<tool_call>\n{CALL}", "\n</tool_call>"),
        (LLAMA3, CALL.replace("arguments", "parameters"), ""),
        (MISTRAL, f"[{CALL}", "]"),
        (MISTRAL_ARGS, '[TOOL_CALLS]look[ARGS]{"at": 1', "}"),
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
    assert (len(behind) > 1) == (form in (HERMES, MISTRAL_ARGS))


def test_a_mark_that_is_a_token_comes_first():
    grammar = calling_grammar(use(), MISTRAL, None, lambda mark: END if "TOOL" in mark else None)
    assert f"<[{END}]>" in grammar
    grammar = calling_grammar(use(), MISTRAL_ARGS, None, {"[ARGS]": END, "[TOOL_CALLS]": END}.get)
    assert 'call_0: <[256]> "look" <[256]> arguments_0' in grammar


def test_who_may_call_is_free_unless_the_answer_has_a_form():
    assert calling_grammar(use(must=False), HERMES, None, lambda mark: None) == ""
    grammar = calling_grammar(use(must=False), HERMES, {"type": "boolean"}, lambda mark: None)
    assert after(grammar, "") == set(b"<tf")
    assert after(grammar, "true") == {END}
    assert json.loads(CALL)


STRICT = ToolUse((), SCHEMAS, must=False, parallel=True, strict=frozenset({"look"}))
FREE = [
    (HERMES, 'Well.\n<tool_call>\n{"name": "look", "arguments": ', "}\n</tool_call>", "so <tool"),
    (LLAMA3, '{"name": "look", "parameters": ', "}", "Hello {"),
    (MISTRAL, '[{"name": "look", "arguments": ', "}]", "[1, 2]"),
    (MISTRAL_ARGS, "[TOOL_CALLS]look[ARGS]", "", "look, {"),
]


@pytest.mark.parametrize(("form", "begin", "end", "text"), FREE)
def test_a_strict_tool_binds_a_call_once_it_has_begun_and_no_text(form, begin, end, text):
    grammar = calling_grammar(STRICT, form, None, lambda mark: None)
    assert END in after(grammar, "") and END in after(grammar, text)
    assert after(grammar, begin + '{"at": ') == set(b"12")
    assert END not in after(grammar, begin + "{")
    assert END in after(grammar, begin + '{"at": 1}' + end)
    free = begin.replace("look", "tell")
    assert {*b"0[", ord('"')} < after(grammar, free + '{"at": ')


@pytest.mark.parametrize(("form", "begin", "end", "text"), FREE)
@pytest.mark.parametrize("seed", range(3))
def test_what_is_written_under_the_grammar_is_read_as_calls_that_fit(form, begin, end, text, seed):
    grammar = calling_grammar(STRICT, form, None, lambda mark: None)
    follower, draw = GRAMMARS.follow(grammar), Random(seed)
    written = (begin + "{").encode()
    allowed = texts_after(follower, written)
    while END not in allowed:
        written += bytes([draw.choice(sorted(allowed))])
        allowed = texts_after(follower, written[-1:])
    reader = ToolReader(form, SCHEMAS)
    read = reader.feed(written.decode(), last=True)
    functions = [call["function"] for call in whole_calls(read.calls)]
    assert functions[0]["name"] == "look"
    for function in functions:
        arguments = json.loads(function["arguments"])
        assert function["name"] == "tell" or arguments in ({"at": 1}, {"at": 2})
    assert read.text == ("Well." if form is HERMES else "")


def test_text_around_calls_stays_free_and_calls_can_be_one_only():
    one = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    many = calling_grammar(STRICT, HERMES, None, lambda mark: None)
    assert after(many, f"{one}\nthen {one} done <tool_call>") == {ord("\n")}
    single = calling_grammar(replace(STRICT, parallel=False), HERMES, None, lambda mark: None)
    assert after(single, f"{one} <tool_call") == after(single, "<tool_call") - {ord(">")}


def test_a_mark_that_is_a_token_may_come_before_a_strict_call():
    grammar = calling_grammar(STRICT, LLAMA3, None, lambda mark: END)
    assert f"<[{END}]>? call" in grammar


def test_what_cannot_be_followed_is_the_tools_fault():
    schema = {"type": "object", "properties": {f"p{index}": {} for index in range(1001)}}
    wide = ToolUse((), {"look": schema}, must=False, parallel=True)
    with pytest.raises(InvalidRequest) as error:
        calling_grammar(wide, HERMES, True, lambda mark: None)
    assert (error.value.param, "1001 properties" in error.value.message) == ("tools", True)
