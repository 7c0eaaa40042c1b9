import orjson
import pytest

from chairlift.cluster.errors import InvalidRequest
from chairlift.deployments.openai_schema import ChatBody, parse_body
from chairlift.deployments.structured import Structuring
from chairlift.deployments.tool_formats import MISTRAL
from support.fake_tokenizer import FakeTokenizer
from support.http_app import CHAT, USER

TOOL = {"type": "function", "function": {"name": "look", "description": "at it"}}


def structuring(template="{{ messages }}", form="auto"):
    return Structuring(form, template, FakeTokenizer())


def read(fields, **options):
    return structuring(**options).read(parse_body(ChatBody, orjson.dumps(CHAT | fields)))


def test_nothing_is_asked_of_a_plain_chat():
    structure = read({})
    assert (structure.grammar, structure.use) == ("", None)


def test_each_field_names_itself():
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}
    assert read({"response_format": {"type": "json_object"}}).asked_by == "response_format"
    assert read({"response_format": schema}).asked_by == "response_format.json_schema.schema"
    structure = read({"tools": [TOOL], "tool_choice": "required"}, form="mistral")
    assert (structure.asked_by, structure.form) == ("tools", MISTRAL)
    assert structure.grammar
    assert read({"tools": [TOOL]}).grammar == ""
    assert read({"tools": [TOOL], "response_format": schema}).grammar


def test_a_strict_function_binds_what_need_not_be_called():
    strict = {"type": "function", "function": {"name": "tell", "strict": True}}
    structure = read({"tools": [TOOL, strict]})
    assert structure.asked_by == "tools" and "to_call[lazy]" in structure.grammar
    assert structure.use is not None and structure.use.strict == {"tell"}
    with pytest.raises(InvalidRequest) as error:
        read({"tools": [strict], "ignore_eos": True})
    assert error.value.param == "ignore_eos"
    assert read({"tools": [strict], "tool_choice": "none"}).grammar == ""


@pytest.mark.parametrize(("field", "value"), [("ignore_eos", True), ("allowed_token_ids", [1])])
def test_only_one_may_say_where_the_output_ends(field, value):
    with pytest.raises(InvalidRequest) as error:
        read({"response_format": {"type": "json_object"}, field: value})
    assert error.value.param == field
    assert read({field: value}).grammar == ""


def test_a_template_that_knows_tools_is_told_nothing_more():
    use = read({"tools": [TOOL]}).use
    messages = [USER, {"role": "tool", "content": "3", "tool_call_id": "x"}]
    assert structuring("{{ tools }}").messages(messages, use) == messages


def test_a_template_that_knows_none_has_them_in_the_messages():
    use = read({"tools": [TOOL]}).use
    call = {"id": "x", "function": {"name": "look", "arguments": {"a": 1}}}
    asked = [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "3", "tool_call_id": "x"},
    ]
    system, user, called, told = structuring().messages(asked, use)
    assert system["role"] == "system" and '"name": "look"' in system["content"]
    assert user == USER
    assert called["content"] == (
        '<tool_call>\n{"name": "look", "arguments": {"a": 1}}\n</tool_call>'
    )
    assert (told["role"], "3" in told["content"]) == ("user", True)
    first, _ = structuring().messages([{"role": "system", "content": "Be brief."}, USER], use)
    assert first["content"].startswith("Be brief.\n\n") and "look" in first["content"]
