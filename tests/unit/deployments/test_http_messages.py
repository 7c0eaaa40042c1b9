"""Every form of message and field that the official client may send, against the whole chain."""

import asyncio

import openai
import pytest
from openai import AsyncOpenAI

from chairlift.router.chat_template import ChatTemplate
from support.asgi_client import call
from support.chain import running_chain
from support.fake_router import FakeRouter
from support.http_app import MODEL, TEMPLATE, USER, http_app

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Köln"}'},
}
TOOLS = (
    "{{ tools[0].name if tools }}"
    "{% for m in messages %}<{{ m.role }}{{ ' ' + m.name if m.name else '' }}>{{ m.content }}"
    "{% for c in m.tool_calls %}{{ c.id }}:{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}{{ m.tool_call_id }}{% endfor %}"
)


def prompt_of(messages: list, template: str = TEMPLATE) -> str:
    """What the model would read."""
    router = FakeRouter()
    app = http_app(router, template=ChatTemplate(template), context_length=2000)
    reply = asyncio.run(call(app, "POST", "/v1/chat/completions", {"messages": messages}))
    assert reply.status == 200, reply.body
    return bytes(router.requests[0].prompt).decode()


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "system", "content": "x"}, "system: x"),
        ({"role": "developer", "content": "x"}, "system: x"),
        ({"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}, "user: ab"),
        ({"role": "user", "content": "x", "name": "kim"}, "user: x"),
        ({"role": "assistant", "content": None}, "assistant: "),
        ({"role": "assistant"}, "assistant: "),
        ({"role": "assistant", "content": "x", "refusal": None, "annotations": []}, "assistant: x"),
    ],
    ids=str,
)
def test_each_form_of_message_reaches_the_template(message, text):
    assert prompt_of([message]) == f"{text}\nassistant:"


def test_tool_calls_and_their_answers_are_told_with_arguments_as_objects():
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "rain", "tool_call_id": "call_1"},
    ]
    told = prompt_of(messages, TOOLS)
    assert told == '<assistant>call_1:weather{"city": "Köln"}<tool>raincall_1'


@pytest.mark.parametrize(
    ("arguments", "told"),
    [("", "{}"), ("{", '"{"'), ("[1]", '"[1]"'), ('{"a":' * 99 + "1" + "}" * 99, None)],
    ids=["none", "no JSON", "no object", "too deep"],
)
def test_arguments_that_a_model_botched_stay_text(arguments, told):
    call_ = {**CALL, "function": {"name": "f", "arguments": arguments}}
    text = prompt_of([{"role": "assistant", "tool_calls": [call_]}], TOOLS)
    assert text.startswith("<assistant>call_1:f")
    if told is not None:
        assert text == f"<assistant>call_1:f{told}"


def test_a_template_that_knows_developers_has_them():
    template = "{% for m in messages %}{{ m.role }}{% endfor %}{{ 'developer' if false }}"
    assert prompt_of([{"role": "developer", "content": "x"}], template) == "developer"


def test_fields_that_change_nothing_are_ignored_and_others_refused_by_the_clients_own_classes():
    async def main():
        async with running_chain() as chain:
            client = AsyncOpenAI(base_url=f"{chain.url}/v1", api_key="-", max_retries=0, timeout=30)
            async with client as official:
                create = official.chat.completions.create
                arguments = {"model": MODEL, "messages": [USER], "seed": 3}
                plain = await create(**arguments, max_completion_tokens=5)
                labelled = await create(
                    **arguments,
                    max_completion_tokens=5,
                    user="me",
                    store=True,
                    metadata={"a": "b"},
                    service_tier="default",
                    safety_identifier="x",
                    prompt_cache_key="x",
                )
                assert labelled.choices == plain.choices
                assert labelled.usage.completion_tokens == 5
                for fields, name in (
                    ({"reasoning_effort": "high"}, "reasoning_effort"),
                    ({"modalities": ["text", "audio"]}, "modalities"),
                    ({"extra_body": {"temprature": 1}}, "temprature"),
                ):
                    with pytest.raises(openai.BadRequestError) as caught:
                        await create(**arguments, **fields)
                    assert caught.value.param == name
                image = {"type": "image_url", "image_url": {"url": "data:,"}}
                with pytest.raises(openai.BadRequestError) as caught:
                    await create(model=MODEL, messages=[{"role": "user", "content": [image]}])
                assert caught.value.param == "messages[0].content[0].type"
                text = await official.completions.create(
                    model=MODEL, prompt="hi", max_tokens=2, user="me"
                )
                assert text.usage.completion_tokens == 2
            await chain.until_idle()

    asyncio.run(main())


def test_a_conversation_with_tools_goes_through_the_official_client():
    async def main():
        async with running_chain() as chain:
            client = AsyncOpenAI(base_url=f"{chain.url}/v1", api_key="-", max_retries=0, timeout=30)
            async with client as official:
                answer = await official.chat.completions.create(
                    model=MODEL,
                    messages=[
                        {"role": "developer", "content": [{"type": "text", "text": "x"}]},
                        {"role": "user", "content": "x"},
                        {"role": "assistant", "content": None, "tool_calls": [CALL]},
                        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
                    ],
                    max_tokens=2,
                )
                assert answer.usage.completion_tokens == 2
            await chain.until_idle()

    asyncio.run(main())
