import asyncio
from typing import Any

import pytest
from aiohttp import web

from chairlift.evaluation.drill_client import Answer, Question, drill_client
from support.openai_server import ScriptedServer, serving, sse

USAGE = {"prompt_tokens": 3, "completion_tokens": 4}


def ask(script, body: dict[str, Any], path: str = "completions") -> Answer:
    async def main(url: str) -> Answer:
        async with drill_client(url) as client:
            return await client.ask(Question(path, body))

    with serving(ScriptedServer(script)) as url:
        return asyncio.run(main(url))


def streamed(*choices: dict[str, Any], usage: dict[str, int] | None = USAGE):
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        events: list[Any] = [{"choices": [choice]} for choice in choices]
        if usage is not None:
            events.append({"choices": [], "usage": usage})
        return await sse(request, *events, "[DONE]")

    return answer


def test_a_stream_is_put_together_as_the_whole_answer():
    def scored(token: str) -> dict[str, list[Any]]:
        return {"tokens": [token], "token_logprobs": [-0.5]}

    async def whole(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        logprobs = {"tokens": ["a", "b"], "token_logprobs": [-0.5, -0.5]}
        choices = [
            {"index": 0, "text": "ab", "finish_reason": "stop", "logprobs": logprobs},
            {"index": 1, "text": "c", "finish_reason": "length", "logprobs": scored("c")},
        ]
        return web.json_response({"choices": choices, "usage": USAGE})

    one = ask(whole, {"prompt": "x"})
    other = ask(
        streamed(
            {"index": 0, "text": "a", "logprobs": scored("a")},
            {"index": 1, "text": "c", "logprobs": scored("c")},
            {"index": 0, "text": "b", "logprobs": scored("b")},
            {"index": 1, "text": "", "finish_reason": "length"},
            {"index": 0, "text": "", "finish_reason": "stop"},
        ),
        {"prompt": "x", "stream": True},
    )
    assert one.failure is None and other.failure is None
    for answer in (one, other):
        assert answer.texts == ["ab", "c"]
        assert answer.finishes == ["stop", "length"]
        assert answer.logprobs[0] == {"tokens": ["a", "b"], "token_logprobs": [-0.5, -0.5]}
        assert answer.usage == (3, 4)
    assert [len(said.pieces) for said in other.choices.values()] == [2, 1]
    assert [len(said.pieces) for said in one.choices.values()] == [0, 0]


def test_a_chat_is_read_like_a_completion():
    answer = ask(
        streamed(
            {"index": 0, "delta": {"role": "assistant", "content": ""}},
            {"index": 0, "delta": {"content": "hi"}},
            {"index": 0, "delta": {}, "finish_reason": "stop"},
        ),
        {"messages": [], "stream": True},
        "chat/completions",
    )
    assert (answer.failure, answer.texts, answer.finishes) == (None, ["hi"], ["stop"])


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        (
            streamed({"index": 0, "text": "a", "finish_reason": "stop"}, {"index": 0, "text": "b"}),
            "after the end",
        ),
        (streamed({"index": 0, "text": "a"}), "no end"),
        (streamed({"index": 0, "text": "a", "finish_reason": "stop"}, usage=None), "usage"),
    ],
    ids=["text after the end", "no end", "no usage"],
)
def test_an_answer_that_breaks_the_rules_is_a_failed_one(script, complaint):
    failure = ask(script, {"prompt": "x", "stream": True}).failure
    assert failure is not None and complaint in failure


def test_a_refusal_and_no_server_are_failures():
    async def refuse(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "full"}}, status=429)

    assert ask(refuse, {}).failure == "http_429: full"

    async def main() -> str | None:
        async with drill_client("http://127.0.0.1:9") as client:
            return (await client.ask(Question("completions", {}))).failure

    assert asyncio.run(main())
