from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from chairlift.evaluation.completions import Target
from chairlift.evaluation.engine_run import Work
from chairlift.evaluation.load_run import Dialect, LoadRun, run_load
from chairlift.evaluation.loads import Load
from support.openai_server import Answer, ScriptedServer, serving, sse, tokens

WORK = tuple(Work(0.001 * i, (5, 6, i), 2 + i % 3) for i in range(9))


def play(server: ScriptedServer, load: Load, dialect: Dialect = "tokens") -> LoadRun:
    async def main(url: str) -> LoadRun:
        async with aiohttp.ClientSession() as session:
            return await run_load(session, Target(f"{url}/v1", "scripted"), load, 10.0, dialect)

    with serving(server) as url:
        return asyncio.run(main(url))


@pytest.mark.parametrize("in_flight", [2, None])
def test_all_of_a_load_is_sent_as_it_is(in_flight: int | None) -> None:
    server = ScriptedServer()
    run = play(server, Load("x", WORK, in_flight))
    assert sorted((body["prompt"], body["max_tokens"]) for body in server.bodies) == sorted(
        (list(one.prompt), one.output) for one in WORK
    )
    assert all(body["temperature"] == 0 and body["ignore_eos"] for body in server.bodies)
    assert len(run.records) == len(WORK)
    assert {record.failure for record in run.records} == {None}
    assert sum(record.tokens for record in run.records) == sum(one.output for one in WORK)


def test_no_more_are_under_way_than_the_load_says() -> None:
    under_way, most = 0, 0

    async def counted(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        return await tokens(request, body)

    play(ScriptedServer(counted), Load("x", WORK, 3))
    assert most == 3


def answer(output: int, prompt: int | None) -> Answer:
    async def usage(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        events: list[dict[str, Any] | str] = [{"choices": [{"text": "t"}]}] * output
        if prompt is not None:
            counted = {"prompt_tokens": prompt, "completion_tokens": output}
            events.append({"choices": [], "usage": counted})
        return await sse(request, *events, "[DONE]")

    return usage


@pytest.mark.parametrize(
    ("output", "prompt", "detail"),
    [
        (3, 3, "3 output tokens of 4"),
        (5, None, "5 output tokens of 4"),
        (4, 2, "2 prompt tokens of 3"),
        (4, None, ""),
        (4, 3, ""),
    ],
)
def test_an_answer_of_another_length_is_a_failed_one(
    output: int, prompt: int | None, detail: str
) -> None:
    run = play(ScriptedServer(answer(output, prompt)), Load("x", (Work(0.0, (1, 2, 3), 4),), 1))
    (record,) = run.records
    assert (record.failure, record.detail) == ("wrong_length" if detail else None, detail)


def test_other_failures_keep_their_names() -> None:
    async def refuse(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "full"}}, status=503)

    run = play(ScriptedServer(refuse), Load("x", WORK[:2], 1))
    assert [record.failure for record in run.records] == ["http_503", "http_503"]


def test_a_server_that_takes_text_alone_gets_as_many_words_and_may_end_without_done() -> None:
    async def like_transformers(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        number = json.loads(body["generation_config"])["max_new_tokens"]
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": number}
        text: dict[str, Any] = {"choices": [{"text": "t"}]}
        return await sse(request, *[text] * number, {"choices": [{"text": ""}], "usage": usage})

    server = ScriptedServer(like_transformers)
    run = play(server, Load("x", WORK, 2), "words")
    assert {record.failure for record in run.records} == {None}
    assert all("ignore_eos" not in body for body in server.bodies)


def test_a_stream_that_is_cut_before_its_end_is_a_failed_one() -> None:
    async def cut(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return await sse(request, {"choices": [{"text": "t"}]})

    (record,) = play(ScriptedServer(cut), Load("x", WORK[:1], 1)).records
    assert record.failure == "cut_stream"
