from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web

from chairlift.evaluation.completions import CompletionClient, Target, request_body
from chairlift.evaluation.lengths import Lengths
from chairlift.evaluation.load import Ask
from chairlift.evaluation.records import RequestRecord
from support.openai_server import Answer, ScriptedServer, serving, sse, tokens

ASK = Ask(at=0.0, prompt_tokens=3, output_tokens=4, body=b'{"prompt": [1, 2, 3], "max_tokens": 4}')
TEXT = {"choices": [{"text": "a"}]}


def ticks() -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += 1.0


def answer_to(
    url: str, *, timeout_s: float = 10.0, chat: bool = False, ask: Ask = ASK
) -> RequestRecord:
    async def main() -> RequestRecord:
        clock = ticks()
        async with aiohttp.ClientSession() as session:
            client = CompletionClient(
                session,
                Target(base=f"{url}/v1", model="scripted", chat=chat),
                clock=lambda: next(clock),
                timeout_s=timeout_s,
            )
            return await client.send(ask, -5.0)

    return asyncio.run(main())


def record_of(answer: Answer, **options: Any) -> RequestRecord:
    with serving(ScriptedServer(answer)) as url:
        return answer_to(url, **options)


def events(*which: dict[str, Any] | str) -> Answer:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await sse(request, *which)

    return answer


def test_a_complete_answer_has_a_time_for_every_token() -> None:
    record = record_of(tokens)
    assert record.failure is None
    assert (record.intended, record.sent) == (-5.0, 0.0)
    # The clock ticks at each event: four tokens, the usage, and the end.
    assert record.chunks == (1.0, 2.0, 3.0, 4.0)
    assert record.ended == 6.0
    assert (record.prompt_tokens, record.output_tokens) == (3, 4)
    assert (record.asked_prompt, record.asked_output) == (3, 4)


def test_the_role_of_a_chat_answer_is_no_token() -> None:
    async def chat(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await tokens(request, body | {"messages": []})

    record = record_of(chat, chat=True)
    assert record.chunks == (2.0, 3.0, 4.0, 5.0)


def test_an_answer_without_text_has_its_last_event_for_a_first_token() -> None:
    record = record_of(events({"choices": [{"text": "", "finish_reason": "length"}]}, "[DONE]"))
    assert (record.failure, record.chunks, record.output_tokens) == (None, (1.0,), None)


@pytest.mark.parametrize(
    ("answer", "failure", "detail"),
    [
        (events(TEXT), "cut_stream", "without [DONE]"),
        (events(TEXT, {"error": {"code": "replica_lost", "message": "gone"}}),
         "error_replica_lost", "gone"),
        (events({"error": "broken"}), "error_unnamed", "broken"),
        (events("{nonsense"), "bad_answer", "no JSON"),
        (events("[1]"), "bad_answer", "no JSON object"),
    ],
)  # fmt: skip
def test_a_stream_that_goes_wrong_is_a_failure_of_its_class(
    answer: Answer, failure: str, detail: str
) -> None:
    record = record_of(answer)
    assert record.failure == failure
    assert detail in record.detail


def test_a_refusal_keeps_status_and_message() -> None:
    async def refuse(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "queue is full"}}, status=429)

    record = record_of(refuse)
    assert (record.failure, record.detail, record.chunks) == ("http_429", "queue is full", ())


def test_an_error_page_is_quoted_as_it_is() -> None:
    async def fail(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(text="<h1>bad gateway</h1>", status=502)

    record = record_of(fail)
    assert (record.failure, record.detail) == ("http_502", "<h1>bad gateway</h1>")


def test_an_answer_that_takes_too_long_is_a_timeout() -> None:
    async def hang(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    record = record_of(hang, timeout_s=0.05)
    assert record.failure == "timeout"


def test_no_server_is_a_failed_connection() -> None:
    with serving(ScriptedServer()) as url:
        pass
    assert answer_to(url).failure == "connection"


def test_a_connection_that_breaks_is_a_failure() -> None:
    async def drop(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"data: ")
        assert request.transport is not None
        request.transport.abort()
        return response

    assert record_of(drop).failure in ("connection", "cut_stream")


def test_a_prompt_is_so_many_token_ids_below_the_vocabulary() -> None:
    target = Target(base="", model="m", vocab_size=40)
    body = orjson.loads(request_body(target, Lengths(500, 7), random.Random(0)))
    assert len(body["prompt"]) == 500
    assert set(body["prompt"]) == set(range(10, 40))
    assert body["max_tokens"] == 7
    assert body["ignore_eos"] is True
    assert body["stream_options"] == {"include_usage": True}


def test_a_chat_prompt_is_words_and_ignore_eos_can_be_left_out() -> None:
    target = Target(base="", model="m", chat=True, ignore_eos=False)
    body = orjson.loads(request_body(target, Lengths(9, 7), random.Random(0)))
    assert len(body["messages"][0]["content"].split()) == 9
    assert "ignore_eos" not in body and "prompt" not in body


def test_a_client_goes_away_that_has_no_first_token_when_its_patience_is_over() -> None:
    async def silent(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        await asyncio.sleep(60.0)
        raise AssertionError("nobody waits for this")

    # It was meant to be sent five seconds before it was.
    record = record_of(silent, ask=replace(ASK, patience_s=5.01))
    assert (record.failure, record.chunks) == ("gave_up", ())


def test_who_has_a_first_token_has_patience_for_the_others() -> None:
    async def slow(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in (TEXT, TEXT):
            await response.write(b"data: " + orjson.dumps(event) + b"\n\n")
            await asyncio.sleep(0.5)
        await response.write(b"data: [DONE]\n\n")
        return response

    record = record_of(slow, ask=replace(ASK, patience_s=5.4))
    assert (record.failure, len(record.chunks)) == (None, 2)


def test_equal_texts_have_equal_digests() -> None:
    one, same, other = (
        record_of(events(*({"choices": [{"text": text}]} for text in texts), "[DONE]"))
        for texts in (("a", "b"), ("ab",), ("b", "a"))
    )
    assert one.digest == same.digest != other.digest
