import asyncio
import json

import pytest
from aiohttp import web

from chairlift.client import (
    BadAnswer,
    ClientError,
    InvalidRequest,
    NotAllowed,
    Overloaded,
    RetryPolicy,
    ServerFailed,
    Tokenized,
    Unavailable,
)
from chairlift.client.calls import chat, completion
from chairlift.client.errors import NotConnected
from chairlift.client.retries import Attempts, RetryBudget
from support.clients import CLIENTS, collect, opened
from support.openai_server import ScriptedServer, serving, sse, tokens

kinds = pytest.mark.parametrize("kind", CLIENTS)
QUICK = RetryPolicy(base_s=0.0)


def refusal(status, **headers):
    async def answer(request, body):
        error = {"message": "not now", "type": "overloaded_error", "param": None, "code": "full"}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.json_response({"error": error}, status=status, headers=named)

    return answer


class Script:
    """Answers one after the other, and keeps the headers that it was sent."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.headers = []

    async def __call__(self, request, body):
        self.headers.append(request.headers)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return await answer(request, body)


def against(kind, script, use, **options):
    async def main(url):
        async with opened(kind, url, **{"retries": QUICK} | options) as client:
            await use(client)

    with serving(ScriptedServer(script)) as url:
        asyncio.run(main(url))


async def said(client, **options):
    deltas = await collect(client.stream_complete("hi", max_tokens=2, **options))
    return "".join(delta.text for delta in deltas)


@kinds
@pytest.mark.parametrize("status", [429, 503])
def test_what_was_refused_is_asked_again_under_the_same_id(kind, status):
    script = Script(refusal(status, Retry_After="0"), refusal(status), tokens)

    async def use(client):
        assert await said(client) == "t0 t1 "

    against(kind, script, use, api_key="cl-secret")
    assert len(script.headers) == 3
    assert len({headers["X-Request-Id"] for headers in script.headers}) == 1
    assert {headers["Authorization"] for headers in script.headers} == {"Bearer cl-secret"}


@kinds
def test_a_server_that_asks_for_too_much_patience_is_not_waited_for(kind):
    script = Script(refusal(503, Retry_After="3600"))

    async def use(client):
        with pytest.raises(Unavailable) as caught:
            await said(client)
        assert caught.value.retry_after_s == 3600

    against(kind, script, use)
    assert len(script.headers) == 1


@kinds
def test_retries_end_with_their_number_and_with_the_budget(kind):
    script = Script(refusal(429))

    async def use(client):
        for _ in range(5):
            with pytest.raises(Overloaded):
                await said(client)

    against(kind, script, use, retries=RetryPolicy(base_s=0.0, share=0.0, floor=3))
    assert 5 + 3 <= len(script.headers) <= 5 + 4  # one more where a second or so has passed


@kinds
@pytest.mark.parametrize(
    ("status", "error"), [(400, InvalidRequest), (401, NotAllowed), (500, ServerFailed)]
)
def test_other_errors_are_not_tried_again(kind, status, error):
    script = Script(refusal(status))

    async def use(client):
        with pytest.raises(error):
            await said(client)

    against(kind, script, use)
    assert len(script.headers) == 1


@kinds
def test_nothing_is_tried_again_after_the_first_token(kind):
    async def break_off(request, body):
        error = {"message": "gone", "type": "server_error", "param": None, "code": "replica_lost"}
        event = {"choices": [{"index": 0, "text": "Hel", "finish_reason": None}]}
        return await sse(request, event, {"error": error})

    async def cut(request, body):
        return await sse(request, {"choices": [{"index": 0, "text": "Hel"}]})

    script = Script(break_off, cut)

    async def use(client):
        for code in ("replica_lost", None):
            got = []
            stream = client.stream_complete("hi", max_tokens=2)
            with pytest.raises(ClientError) as caught:
                async with stream:
                    async for delta in stream:
                        got.append(delta.text)
            assert (got, caught.value.code) == (["Hel"], code)
            assert caught.value.request_id == stream.request_id

    against(kind, script, use)
    assert len(script.headers) == 2


@kinds
def test_the_deadline_is_told_to_the_server_and_leaves_no_room_for_a_long_pause(kind):
    script = Script(tokens, refusal(503, Retry_After="20"))

    async def use(client):
        await said(client, timeout_s=9.0)
        with pytest.raises(Unavailable):
            await said(client, timeout_s=9.0)
        await client.models()

    against(kind, script, use)
    left = [float(headers["X-Request-Timeout"]) for headers in script.headers]
    assert len(left) == 2
    assert all(8 < seconds <= 9 for seconds in left)


@kinds
def test_tokens_of_a_text_and_of_a_chat_and_back(kind):
    server = ScriptedServer()
    bodies = []

    async def tokenize(request):
        bodies.append(await request.json())
        return web.json_response({"tokens": [1, 2], "count": 2, "max_model_len": 64})

    async def detokenize(request):
        bodies.append(await request.json())
        return web.json_response({"prompt": "hi"})

    server.app.router.add_post("/tokenize", tokenize)
    server.app.router.add_post("/detokenize", detokenize)
    user = {"role": "user", "content": "hi"}

    async def main(url):
        async with opened(kind, f"{url}/v1/") as client:
            assert await client.tokenize("hi") == Tokenized((1, 2), 64)
            assert await client.tokenize([user]) == Tokenized((1, 2), 64)
            assert await client.detokenize((1, 2)) == "hi"

    with serving(server) as url:
        asyncio.run(main(url))
    assert bodies == [{"prompt": "hi"}, {"messages": [user]}, {"tokens": [1, 2]}]


@kinds
def test_what_is_no_answer_of_this_api_is_named(kind):
    async def page(request, body):
        return web.Response(text="<html>hello</html>")

    async def use(client):
        with pytest.raises(BadAnswer, match="hello"):
            await client.chat([{"role": "user", "content": "hi"}])

    against(kind, page, use)


@pytest.mark.parametrize("kind", CLIENTS.values())
@pytest.mark.parametrize(
    "wrong", [{"url": "localhost:8000"}, {"api_key": "a\nb"}, {"timeout_s": 0.0}]
)
def test_what_cannot_be_is_refused_at_once(kind, wrong):
    with pytest.raises(ValueError, match=r"address|api_key|timeout_s"):
        kind(**{"url": "http://127.0.0.1:1"} | wrong)


def test_the_budget_lets_a_share_of_the_calls_be_retries_and_a_few_besides():
    policy = RetryPolicy(share=0.1, floor=5)
    budget = RetryBudget(policy, now=0.0)
    allowed = 0
    for _ in range(1000):
        budget.started(0.0)
        allowed += budget.take(0.0)
    assert 100 <= allowed <= 106
    assert not budget.take(0.0)
    assert 5 <= sum(budget.take(60.0) for _ in range(10)) <= 6


def test_pauses_grow_are_drawn_and_come_on_top_of_what_the_server_asks_for():
    policy = RetryPolicy(attempts=4, base_s=1.0, longest_s=3.0)
    attempts = Attempts(policy, RetryBudget(policy, 0.0), None, now=0.0)
    refused = Overloaded("full", retry_after_s=2.0)
    pauses = [attempts.pause_s(refused, 0.0, lambda low, high: high) for _ in range(4)]
    assert pauses == [3.0, 4.0, 5.0, None]
    attempts = Attempts(policy, RetryBudget(policy, 0.0), None, now=0.0)
    assert attempts.pause_s(NotConnected("no"), 0.0, lambda low, high: low) == 0.0
    assert attempts.pause_s(ServerFailed("no"), 0.0, lambda low, high: low) is None


def test_bodies_have_what_was_given_and_no_option_that_there_is_not():
    user = {"role": "user", "content": "é"}
    call = chat([user], {"seed": 1, "stop": None, "timeout_s": 2.0}, stream=True)
    assert json.loads(call.body) == {
        "messages": [user],
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert call.timeout_s == 2.0
    with pytest.raises(TypeError, match="temprature"):
        completion("hi", {"temprature": 1.0}, stream=False)
    with pytest.raises(ValueError, match="JSON"):
        completion("hi", {"temperature": float("nan")}, stream=False)
