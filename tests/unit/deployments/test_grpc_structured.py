"""Forms of answers over gRPC, beside HTTP, through the whole chain with a model that follows."""

import asyncio
import json
from typing import Any

import aiohttp
import grpc
import pytest

from chairlift.deployments.proto import inference_pb2 as pb
from chairlift.deployments.proto.inference_pb2_grpc import InferenceStub
from chairlift.router.flight import Update
from support.chain import running_chain
from support.fake_router import FakeRouter
from support.grammars import byte_grammars
from support.grpc_front import details_of, grpc_front
from support.http_app import USER
from support.inference_stub import failure, read, with_stub

SCHEMA = {
    "type": "object",
    "properties": {"wash": {"enum": ["red", "blue"]}, "at": {"type": "integer", "maximum": 9}},
    "required": ["wash", "at"],
    "additionalProperties": False,
}
USER_SAYS = pb.ChatMessage(role="user", content=USER["content"])
ROOM = {"context_length": 4096}
FINISHES = {1: "stop", 2: "length", 3: "tool_calls"}
NAMES = ("paint", "wash")
TEXT = json.dumps(SCHEMA)
HTTP_TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in NAMES
]
TOOLS = [pb.Tool(function=pb.Function(name=name, parameters=TEXT)) for name in NAMES]
WASH = {"type": "function", "function": {"name": "wash"}}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}
ASKED: list[tuple[dict[str, Any], pb.Chat]] = [
    (
        {"response_format": {"type": "json_object"}},
        pb.Chat(response_format=pb.ResponseFormat(json_object=pb.JsonObject())),
    ),
    (
        {"response_format": FORM},
        pb.Chat(
            response_format=pb.ResponseFormat(
                json_schema=pb.JsonSchema(name="n", strict=True, schema=TEXT)
            )
        ),
    ),
    (
        {"tools": HTTP_TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
        pb.Chat(
            tools=TOOLS,
            tool_choice=pb.ToolChoice(mode=pb.TOOL_MODE_REQUIRED),
            parallel_tool_calls=False,
        ),
    ),
    (
        {"tools": HTTP_TOOLS, "tool_choice": WASH},
        pb.Chat(tools=TOOLS, tool_choice=pb.ToolChoice(function=pb.NamedFunction(name="wash"))),
    ),
]


def calls_of(choice: pb.Choice) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in choice.tool_calls]


def test_the_same_request_has_the_same_text_and_calls_by_both_ways():
    async def main() -> list[tuple[Any, Any, list[pb.GenerateChunk]]]:
        found = []
        async with (
            running_chain(grammars=byte_grammars()) as chain,
            grpc_front(chain.router, context_length=1024) as channel,
            aiohttp.ClientSession() as session,
        ):
            stub = InferenceStub(channel)
            for fields, chat in ASKED:
                body = {"messages": [USER], "max_tokens": 400, "seed": 4, "n": 2} | fields
                url = f"{chain.url}/v1/chat/completions"
                async with session.post(url, json=body) as reply:
                    theirs = await reply.json()
                request = pb.GenerateRequest(
                    chat=chat, n=2, sampling=pb.Sampling(max_tokens=400, seed=4)
                )
                request.chat.messages.append(USER_SAYS)
                whole = await stub.Generate(request)
                found.append((theirs, whole, await read(stub.GenerateStream(request))))
            await chain.until_idle()
        return found

    for theirs, whole, chunks in asyncio.run(main()):
        joined = [pb.Choice(), pb.Choice()]
        for piece in (piece for chunk in chunks for piece in chunk.choices):
            choice = joined[piece.index]
            choice.text += piece.text
            for call in piece.tool_calls:
                if call.id:
                    choice.tool_calls.append(call)
                else:
                    choice.tool_calls[call.index].function.arguments += call.function.arguments
        for their, ours, streamed in zip(theirs["choices"], whole.choices, joined, strict=True):
            message = their["message"]
            told = [
                (call["function"]["name"], call["function"]["arguments"])
                for call in message.get("tool_calls", ())
            ]
            assert ours.text == streamed.text == (message["content"] or "")
            assert calls_of(ours) == calls_of(streamed) == told
            assert FINISHES[ours.finish_reason] == their["finish_reason"]
            assert bool(told) is (their["finish_reason"] == "tool_calls")
            assert [call.index for call in ours.tool_calls] == list(range(len(told)))


def test_calls_come_in_pieces_and_whole():
    said = '<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>'
    request = pb.GenerateRequest(
        chat=pb.Chat(messages=[USER_SAYS], tools=[pb.Tool(function=pb.Function(name="look"))])
    )

    def script(asked: Any) -> list[list[Update]]:
        """A turn for every nine characters, so that they are not joined."""
        ends = range(9, len(said) + 9, 9)
        return [
            [Update(0, said[end - 9 : end], end // 9, "stop" if end >= len(said) else None)]
            for end in ends
        ]

    chunks = with_stub(lambda stub: read(stub.GenerateStream(request)), FakeRouter(script), **ROOM)
    pieces = [call for chunk in chunks for choice in chunk.choices for call in choice.tool_calls]
    assert len(pieces) > 1
    assert pieces[0].id.startswith("call_") and pieces[0].function.name == "look"
    assert {(piece.id, piece.function.name) for piece in pieces[1:]} == {("", "")}
    assert "".join(piece.function.arguments for piece in pieces) == '{"at": 1}'
    assert chunks[-1].choices[0].finish_reason == pb.FINISH_REASON_TOOL_CALLS
    whole = with_stub(lambda stub: stub.Generate(request), FakeRouter(script), **ROOM)
    assert (calls_of(whole.choices[0]), whole.choices[0].text) == ([("look", '{"at": 1}')], "")


CALLED = pb.ChatMessage(
    role="assistant",
    tool_calls=[pb.ToolCall(id="x", function=pb.FunctionCall(name="look", arguments="{}"))],
)
TOLD = pb.ChatMessage(role="tool", content="3", tool_call_id="x", name="look")


def test_calls_and_their_results_reach_the_template_and_the_count_of_tokens():
    router = FakeRouter()
    tools = [pb.Tool(function=pb.Function(name="look", description="at it", strict=False))]
    chat = pb.Chat(messages=[USER_SAYS, CALLED, TOLD], tools=tools)

    async def scenario(stub: Any) -> list[int]:
        await stub.Generate(pb.GenerateRequest(chat=chat, sampling=pb.Sampling(max_tokens=1)))
        return list((await stub.Tokenize(pb.TokenizeRequest(chat=chat))).token_ids)

    counted = with_stub(scenario, router, **ROOM)
    (request,) = router.requests
    assert list(request.prompt) == counted
    text = bytes(token for token in counted if token < 256).decode()
    assert "at it" in text and '<tool_call>\n{"name": "look"' in text
    assert "<tool_response>\n3" in text


def function(**fields: Any) -> pb.Chat:
    return pb.Chat(tools=[pb.Tool(function=pb.Function(**({"name": "look"} | fields)))])


def schema(text: str) -> pb.Chat:
    form = pb.JsonSchema(name="n", schema=text)
    return pb.Chat(response_format=pb.ResponseFormat(json_schema=form))


WIDE = {"properties": {f"p{index}": {} for index in range(1500)}}
BAD = [
    (function(name="two words"), "chat.tools[0].function.name"),
    (function(parameters="{"), "chat.tools[0].function.parameters"),
    (function(parameters="[]"), "chat.tools[0].function.parameters"),
    (function(strict=True, parameters=json.dumps(WIDE)), "chat.tools[0].function.parameters"),
    (pb.Chat(tool_choice=pb.ToolChoice(mode=pb.TOOL_MODE_REQUIRED)), "chat.tool_choice"),
    (pb.Chat(tool_choice=pb.ToolChoice(mode=9)), "chat.tool_choice.mode"),
    (
        pb.Chat(tools=TOOLS, tool_choice=pb.ToolChoice(function=pb.NamedFunction(name="x"))),
        "chat.tool_choice.function.name",
    ),
    (schema(""), "chat.response_format.json_schema.schema"),
    (schema("false"), "chat.response_format.json_schema.schema"),
    (schema(json.dumps(WIDE)), "chat.response_format.json_schema.schema"),
    (pb.Chat(messages=[pb.ChatMessage(role="tool", content="3")]), "chat.messages[1].tool_call_id"),
]


@pytest.mark.parametrize(("chat", "field"), BAD)
def test_a_wrong_field_is_named_where_the_client_wrote_it(chat, field):
    asked = pb.Chat(messages=[USER_SAYS])
    asked.MergeFrom(chat)
    error = failure(lambda stub: stub.Generate(pb.GenerateRequest(chat=asked)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    (violation,) = details_of(error)["BadRequest"].field_violations
    assert violation.field == field
    assert error.details().startswith(f"{field}: ")
