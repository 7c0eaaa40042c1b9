import orjson
import pytest

from chairlift.cluster.errors import InvalidRequest
from chairlift.deployments.openai_schema import ChatBody, parse_body
from chairlift.deployments.tool_schema import MAX_TOOLS, read_tools
from support.http_app import CHAT


def tool(name="look", **function):
    return {"type": "function", "function": {"name": name, **function}}


NAMED = {"type": "function", "function": {"name": "look"}}


def use(**fields):
    chat = parse_body(ChatBody, orjson.dumps(CHAT | fields))
    return read_tools(chat.tools, chat.tool_choice, chat.parallel_tool_calls)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tools": [tool()]}, (["look"], False, True)),
        ({"tools": [tool(), tool("tell")], "tool_choice": "auto"}, (["look", "tell"], False, True)),
        ({"tools": [tool()], "tool_choice": "required"}, (["look"], True, True)),
        (
            {"tools": [tool()], "tool_choice": "required", "parallel_tool_calls": False},
            (["look"], True, False),
        ),
        ({"tools": [tool(), tool("tell")], "tool_choice": NAMED}, (["look"], True, False)),
    ],
)
def test_what_may_and_must_be_called(fields, expected):
    found = use(**fields)
    assert found is not None
    assert (list(found.callable), found.must, found.parallel) == expected
    assert [each["function"]["name"] for each in found.tools] == [
        each["function"]["name"] for each in fields["tools"]
    ]


@pytest.mark.parametrize(
    "fields",
    [{}, {"tools": []}, {"tools": [tool()], "tool_choice": "none"}, {"tool_choice": "auto"}],
)
def test_without_tools_or_leave_nothing_is_called(fields):
    assert use(**fields) is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "web"}]}, "tools[0].type"),
        ({"tools": [tool("two words")]}, "tools[0].function.name"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name"),
        ({"tools": [tool()] * (MAX_TOOLS + 1)}, "tools"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [tool()], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": 3}, "tool_choice"),
        ({"tools": [tool()], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [tool("tell")], "tool_choice": NAMED}, "tool_choice.function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [tool(parameters={"type": "strin"})], "tool_choice": "required"},
            "tools[0].function.parameters",
        ),
        (
            {"tools": [tool("a"), tool(strict=True, parameters={"not": {}})]},
            "tools[1].function.parameters",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_its_place(fields, param):
    with pytest.raises(InvalidRequest) as error:
        use(**fields)
    assert error.value.param == param


def test_only_what_may_be_called_can_be_strict():
    tools = [tool(strict=True), tool("tell", strict=True, parameters={"not": {}}), tool("go")]
    found = use(tools=tools, tool_choice=NAMED)
    assert found is not None and found.strict == {"look"}


def test_a_schema_that_need_not_be_kept_to_is_not_checked():
    assert use(tools=[tool(parameters={"type": "object", "not": {}})]) is not None
