import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.deployments.tool_formats import HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS
from chairlift.deployments.tool_reader import ToolReader, whole_calls

NAMES = ("look", "tell")
LOOK = '{"name": "look", "arguments": {"at": "a } \\" b", "n": [1, {}]}}'
TELL = '{"arguments":{}, "name":"tell"}'
AT = '{"at": "a } \\" b", "n": [1, {}]}'
ARGUMENTS = {"look": {"at": 'a } " b', "n": [1, {}]}, "tell": {}}


def hermes(*calls):
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


CALLING = [
    (HERMES, hermes(LOOK), "", ["look"]),
    (HERMES, "I look.\n" + hermes(LOOK, TELL) + "\n", "I look.", ["look", "tell"]),
    (HERMES, f"<tool_call>{LOOK}</tool_call>then<tool_call>{TELL}", "then", ["look", "tell"]),
    (LLAMA3, LOOK.replace("arguments", "parameters"), "", ["look"]),
    (LLAMA3, f"<|python_tag|> {LOOK}", "", ["look"]),
    (LLAMA3, f"{LOOK}; {TELL}", "", ["look", "tell"]),
    (MISTRAL, f"[{LOOK}]", "", ["look"]),
    (MISTRAL, f" [TOOL_CALLS] [{LOOK}, {TELL}]", "", ["look", "tell"]),
    (MISTRAL, f"[TOOL_CALLS]{LOOK}", "", ["look"]),
    (MISTRAL_ARGS, f"look{AT}", "", ["look"]),
    (MISTRAL_ARGS, f"look{AT}tell{{}}", "", ["look", "tell"]),
    (MISTRAL_ARGS, f"[TOOL_CALLS]look[ARGS]{AT}", "", ["look"]),
    (MISTRAL_ARGS, f" [TOOL_CALLS]look[ARGS] {AT}[TOOL_CALLS]tell[ARGS]{{}}", "", ["look", "tell"]),
    (MISTRAL_ARGS, f"[TOOL_CALLS]tell[CALL_ID]a1B2c3D4e[ARGS]{{}} look{AT}", "", ["tell", "look"]),
    (MISTRAL_ARGS, f"tella1B2c3D4e{{}}look{AT} done", "done", ["tell", "look"]),
    (MISTRAL_ARGS, "tell{} tel", "tel", ["tell"]),
    (MISTRAL_ARGS, f"[TOOL_CALLS][{LOOK}]", "", ["look"]),
    (MISTRAL, f"[TOOL_CALLS]look[ARGS]{AT}", "", ["look"]),
    (HERMES, hermes('{"name": "tell"}'), "", ["tell"]),
    (HERMES, hermes('{"name": "tell", "arguments": "{}"}'), "", ["tell"]),
]
TEXTS = [
    (HERMES, "plain <tool> text <tool_call"),
    (HERMES, "  "),
    (HERMES, hermes('{"name": "other", "arguments": {}}')),
    (HERMES, "<tool_call>\nnot json</tool_call> more"),
    (LLAMA3, "Hello {"),
    (LLAMA3, '{"name": "Ada", "age": 3}'),
    (LLAMA3, "<|python"),
    (MISTRAL, "[1, 2]"),
    (MISTRAL, "["),
    (MISTRAL, '[{"name": "other", "arguments": {}}] end'),
    (MISTRAL, "[TOOL"),
    (MISTRAL_ARGS, "look"),
    (MISTRAL_ARGS, "look, {"),
    (MISTRAL_ARGS, "look[ARG"),
    (MISTRAL_ARGS, "tell[CALL_ID]1"),
    (MISTRAL_ARGS, "tella1B2c3D4 {}"),
    (MISTRAL_ARGS, "look {braces}"),
    (MISTRAL_ARGS, "[TOOL_CALLS]other[ARGS]{}"),
]


def read(form, pieces):
    reader = ToolReader(form, NAMES)
    parts = [reader.feed(piece, last=last) for piece, last in pieces]
    calls = whole_calls(delta for part in parts for delta in part.calls)
    return "".join(part.text for part in parts), calls


def told(calls):
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def pieces(text, size):
    parts = [text[start : start + size] for start in range(0, len(text), size)] + [""]
    return [(part, index == len(parts) - 1) for index, part in enumerate(parts)]


@pytest.mark.parametrize(("form", "text", "said", "names"), CALLING)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_found_however_the_text_comes(form, text, said, names, size):
    content, calls = read(form, pieces(text, size))
    assert (content, [name for name, _ in told(calls)]) == (said, names)
    for name, arguments in told(calls):
        assert json.loads(arguments) == ARGUMENTS[name]
    for call in calls:
        assert call["type"] == "function"
        assert re.fullmatch(
            "[A-Za-z0-9]{9}" if form in (MISTRAL, MISTRAL_ARGS) else "call_[0-9a-f]{24}", call["id"]
        )


@pytest.mark.parametrize(("form", "text"), TEXTS)
@pytest.mark.parametrize("size", [1, 1000])
def test_what_is_no_call_stays_text(form, text, size):
    assert read(form, pieces(text, size)) == (text, [])


def test_arguments_come_as_they_are_written():
    reader = ToolReader(HERMES, NAMES)
    assert reader.feed('<tool_call>{"name": "look", "argu').calls == ()
    (opening,) = reader.feed('ments": {"at": "he').calls
    assert (opening.call, opening.name, opening.arguments) == (0, "look", '{"at": "he')
    (more,) = reader.feed('re"').calls
    assert (more.call, more.id, more.name, more.arguments) == (0, None, None, 're"')
    assert reader.feed("}}\n</tool_call>").calls[0].arguments == "}"


def test_arguments_behind_a_name_come_as_they_are_written_and_end_where_they_break():
    reader = ToolReader(MISTRAL_ARGS, NAMES)
    assert reader.feed("[TOOL_CALLS]look[ARGS]{").calls == ()
    (opening,) = reader.feed('"at": "he').calls
    assert (opening.name, opening.arguments) == ("look", '{"at": "he')
    (more,) = reader.feed('re", x').calls
    assert (more.id, more.arguments) == (None, 're", ')
    assert reader.feed("", last=True).text == ""
    assert read(MISTRAL_ARGS, [('look{"at": 1, x y', False), ("", True)])[0] == "x y"


def test_a_call_that_is_cut_off_keeps_what_there_is():
    content, calls = read(HERMES, pieces(hermes(LOOK)[:60], 7))
    assert (content, told(calls)[0][0]) == ("", "look")
    assert '{"at": "a } \\" b", "n": [1, {}]}'.startswith(told(calls)[0][1])


ALPHABET = [
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[",
    "]",
    "{",
    "}",
    '"',
    ",",
    ":",
    " ",
    "\n",
]
soup = st.lists(
    st.sampled_from(
        [
            *ALPHABET,
            LOOK,
            TELL,
            AT,
            "look",
            "[ARGS]",
            "a1B2c3D4e",
            '"name"',
            '"look"',
            '"arguments"',
            "\\",
            "x",
            "<",
            ";",
        ]
    ),
    max_size=12,
).map("".join)


@given(st.sampled_from([HERMES, LLAMA3, MISTRAL, MISTRAL_ARGS]), soup, st.integers(1, 9))
def test_pieces_add_up_to_the_same_as_the_whole(form, text, size):
    whole_text, whole = read(form, pieces(text, 10**6))
    cut_text, cut = read(form, pieces(text, size))
    assert (whole_text, told(whole)) == (cut_text, told(cut))
    if not whole:
        assert whole_text == text
