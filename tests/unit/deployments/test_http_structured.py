"""Forms of answers, by the official client, through the whole chain with a model that follows."""

import asyncio
import json

import openai
import pytest
from openai import AsyncOpenAI

from support.chain import running_chain
from support.grammars import byte_grammars
from support.http_app import MODEL, USER

SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer", "maximum": 9}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "paint", "strict": True, "schema": SCHEMA}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}}
    for name in ("paint", "wash")
]
ARGUMENTS = {"model": MODEL, "messages": [USER], "max_tokens": 400, "seed": 4}


def ask(use):
    async def main():
        async with running_chain(grammars=byte_grammars()) as chain:
            base = f"{chain.url}/v1"
            async with AsyncOpenAI(base_url=base, api_key="none", max_retries=0) as client:
                found = await use(client.chat.completions.create)
            await chain.until_idle()
            return found

    return asyncio.run(main())


def check(text):
    value = json.loads(text)
    assert value.keys() == {"colour", "count"}
    assert value["colour"] in ("red", "blue") and value["count"] <= 9


def test_answers_fit_the_schema_whole_and_streamed_for_each_choice():
    async def use(create):
        whole = await create(**ARGUMENTS, response_format=FORMAT, n=3)
        stream = await create(**ARGUMENTS, response_format=FORMAT, n=3, stream=True)
        return whole, [chunk async for chunk in stream]

    whole, chunks = ask(use)
    texts = [choice.message.content for choice in whole.choices]
    assert [choice.finish_reason for choice in whole.choices] == ["stop"] * 3
    for text in texts:
        check(text)
    streamed = ["", "", ""]
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_an_answer_that_is_cut_off_says_so():
    cut = ask(lambda create: create(**(ARGUMENTS | {"max_tokens": 4}), response_format=FORMAT))
    assert cut.choices[0].finish_reason == "length"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "wash"}}])
def test_a_call_that_must_be_made_is_made_whole_and_streamed(choice):
    async def use(create):
        arguments = {**ARGUMENTS, "tools": TOOLS, "tool_choice": choice}
        arguments |= {"parallel_tool_calls": False}
        stream = await create(**arguments, stream=True)
        return await create(**arguments), [chunk async for chunk in stream]

    whole, chunks = ask(use)
    (answer,) = whole.choices
    (call,) = answer.message.tool_calls
    assert (answer.finish_reason, answer.message.content) == ("tool_calls", None)
    assert call.function.name == "wash" or choice == "required"
    check(call.function.arguments)
    deltas = [d for chunk in chunks for c in chunk.choices for d in c.delta.tool_calls or ()]
    assert [d.id is not None for d in deltas] == [True, *[False] * (len(deltas) - 1)]
    assert len(deltas) > 3 and {d.index for d in deltas} == {0}
    assert deltas[0].function.name == call.function.name
    assert "".join(d.function.arguments for d in deltas) == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"schema": {"not": {}}}, "response_format.json_schema.schema"),
        ({"schema": {"$ref": "#"}}, "response_format.json_schema.schema"),
        (
            {"schema": {"properties": {f"p{index}": {} for index in range(1500)}}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_schema_that_cannot_be_followed_is_refused_by_its_place(fields, param):
    async def use(create):
        form = {"type": "json_schema", "json_schema": {"name": "x", **fields}}
        with pytest.raises(openai.BadRequestError) as error:
            await create(**ARGUMENTS, response_format=form)
        return error.value

    error = ask(use)
    assert error.body["param"] == param
    assert error.body["message"].startswith(f"{param}: ")
