"""Log probabilities, echo, cached tokens and seeds, as OpenAI's client and the bytes have them."""

import asyncio
import json

import pytest
from openai import AsyncOpenAI

from chairlift.cluster.protocol import Delta, FinishReason, TokenLogprobs
from support.asgi_client import Reply, call
from support.fake_tokenizer import BOS
from support.http_app import CHAT, MODEL, USER, http_app
from support.scored import ScriptedRouter, logprobs_of, says
from support.scripted_replica import scripted_service

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SAID = "hé!".encode()
CHUNKS = [SAID[:2], SAID[2:3], SAID[3:] + bytes([0])]  # the second one ends the character
OUTPUT = says(*CHUNKS, finish=FinishReason.STOP, cached_tokens=2)
USAGE = {"include_usage": True}


def with_client(use, script=OUTPUT) -> None:
    async def main():
        async with scripted_service(script) as (url, replica):
            client = AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=30)
            async with client as official:
                await use(official, replica)

    asyncio.run(main())


def post(path: str, body: dict, script=OUTPUT) -> Reply:
    reply = asyncio.run(call(http_app(ScriptedRouter(script)), "POST", path, body))
    assert reply.status == 200, reply.body
    return reply


def test_the_official_client_reads_those_of_a_chat_in_one_piece_and_streamed():
    async def use(official, replica):
        arguments = {"model": MODEL, "messages": [USER], "logprobs": True, "top_logprobs": 3}
        whole = await official.chat.completions.create(**arguments)
        (choice,) = whole.choices
        assert choice.message.content == "hé!"
        content = choice.logprobs.content
        assert [entry.logprob for entry in content] == [
            logprobs_of(token, 3).chosen for token in [*SAID, 0]
        ]
        assert bytes(byte for entry in content for byte in entry.bytes) == SAID + b"\x00"
        assert [entry.token for entry in content] == ["h", "\ufffd", "\ufffd", "!", "\x00"]
        assert [top.bytes for top in content[0].top_logprobs] == [[104], [105], [106]]
        assert choice.logprobs.refusal is None
        assert len(content) == whole.usage.completion_tokens
        assert replica.requests[0].sampling.logprobs == 3

        stream = await official.chat.completions.create(
            **arguments, stream=True, stream_options=USAGE
        )
        text, entries = "", []
        async for chunk in stream:
            for piece in chunk.choices:
                text += piece.delta.content or ""
                if piece.logprobs:
                    entries += piece.logprobs.content
        assert text == "hé!"
        assert entries == content
        assert chunk.usage == whole.usage

    with_client(use)


def test_the_official_client_reads_those_of_a_completion_with_its_echo():
    async def use(official, replica):
        arguments = {"model": MODEL, "prompt": "aé", "logprobs": 2, "echo": True}
        whole = await official.completions.create(**arguments)
        (choice,) = whole.choices
        assert choice.text == "aéhé!"
        tokens = [*"aé".encode(), *SAID, 0]
        found = choice.logprobs
        assert found.tokens == ["", "a", *["\ufffd"] * 2, "h", *["\ufffd"] * 2, "!", "\x00"]
        assert found.token_logprobs == [None, *(logprobs_of(token, 2).chosen for token in tokens)]
        assert found.text_offset == [0, 0, 1, 1, 2, 3, 3, 4, 5]
        assert found.top_logprobs[0] is None
        assert found.top_logprobs[1] == {"a": 0.0, "b": -0.125}
        assert whole.usage.completion_tokens == len(SAID) + 1
        assert whole.usage.prompt_tokens == 1 + len("aé".encode())

        text, joined = "", {}
        async for chunk in await official.completions.create(**arguments, stream=True):
            for piece in chunk.choices:
                text += piece.text
                for name, values in (piece.logprobs.model_dump() if piece.logprobs else {}).items():
                    joined.setdefault(name, []).extend(values)
        assert text == choice.text
        assert joined == found.model_dump()

    with_client(use)


def test_a_prompt_is_scored_without_an_answer():
    async def use(official, replica):
        arguments = {"model": MODEL, "prompt": [[97, 98], [99]], "n": 2, "max_tokens": 0}
        whole = await official.completions.create(**arguments, echo=True, logprobs=0)
        assert [choice.text for choice in whole.choices] == ["ab", "ab", "c", "c"]
        assert {choice.finish_reason for choice in whole.choices} == {"length"}
        values = [choice.logprobs.token_logprobs for choice in whole.choices]
        expected = [None, logprobs_of(98, 0).chosen]
        assert values == [expected, expected, [None], [None]]
        assert whole.choices[0].logprobs.top_logprobs == [None, {"b": expected[1]}]
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (3, 0)
        assert [request.sampling.max_tokens for request in replica.requests] == [1, 1]
        stream = await official.completions.create(
            **arguments, echo=True, stream=True, stream_options=USAGE
        )
        texts = dict.fromkeys(range(4), "")
        async for chunk in stream:
            for piece in chunk.choices:
                texts[piece.index] += piece.text
        assert list(texts.values()) == ["ab", "ab", "c", "c"]
        assert chunk.usage.completion_tokens == 0

    with_client(use, says([65], finish=FinishReason.STOP))


def test_cached_tokens_are_the_luckiest_choices_summed_over_the_prompts():
    def script(request):
        if len(request.prompt) == 1:
            return says([65])(request)
        return [[Delta(c, (65,), FinishReason.LENGTH, cached_tokens=16 * c) for c in range(2)]]

    async def use(official, replica):
        arguments = {"model": MODEL, "n": 2, "prompt": [[1] * 40, [2] * 50, [3]]}
        whole = await official.completions.create(**arguments)
        assert whole.usage.prompt_tokens_details.cached_tokens == 32
        stream = await official.completions.create(**arguments, stream=True, stream_options=USAGE)
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage == whole.usage

    with_client(use, script)


def test_seeds_are_told_in_a_header_and_beside_the_usage_and_salts_reach_the_replica():
    async def use(official, replica):
        create = official.completions.with_raw_response.create
        arguments = {"model": MODEL, "prompt": ["a", "b"], "extra_body": {"cache_salt": "mine"}}
        raw = await create(**arguments)
        seeds = [request.sampling.seed for request in replica.requests]
        assert raw.headers["x-chairlift-seed"] == ",".join(map(str, seeds))
        assert raw.parse().chairlift == {"seeds": seeds}
        assert [request.cache_salt for request in replica.requests] == ["=mine"] * 2
        raw = await create(**arguments, seed=7, stream=True, stream_options=USAGE)
        assert raw.headers["x-chairlift-seed"] == "7,7"
        chunks = [chunk async for chunk in raw.parse()]
        assert chunks[-1].chairlift == {"seeds": [7, 7]}

    with_client(use)


def test_the_bytes_of_a_streamed_chat_with_log_probabilities():
    body = CHAT | {"stream": True, "logprobs": True, "top_logprobs": 1, "seed": 1}
    reply = post(CHATS, body, says(b"a\xc3", b"\xa9", b"\x00", finish=FinishReason.STOP))
    head = reply.body[: reply.body.index(b'"choices"')]
    choice = head + b'"choices":[{"index":0,"delta":'
    rest = b',"finish_reason":null}]}\n\n'

    def entry(token: str, *data: int) -> bytes:
        shown = b'{"token":"%s","logprob":-0.0,"bytes":%s' % (
            token.encode(),
            json.dumps(data, separators=(",", ":")).encode(),
        )
        return shown + b',"top_logprobs":[' + shown + b"}]}"

    def content(*entries: bytes) -> bytes:
        return b',"logprobs":{"content":[' + b",".join(entries) + b'],"refusal":null}'

    assert reply.body == b"".join(
        [
            choice + b'{"role":"assistant","content":""},"logprobs":null' + rest,
            choice + b'{"content":"a"}' + content(entry("a", 97)) + rest,
            choice + b'{"content":"\xc3\xa9"}',
            content(entry("\ufffd", 0xC3), entry("\ufffd", 0xA9)) + rest,
            choice + b"{}" + content(entry("\\u0000", 0)) + b',"finish_reason":"stop"}]}\n\n',
            b"data: [DONE]\n\n",
        ]
    )


def test_the_bytes_of_a_streamed_completion_with_log_probabilities():
    body = {"prompt": [97, 98], "stream": True, "logprobs": 0, "echo": True, "stop": "end"}
    reply = post(COMPLETIONS, body, says(b"x", b"en", b"y", b"end"))
    choice = reply.body[: reply.body.index(b'"choices"')] + b'"choices":[{"index":0,"text":'

    def event(text: bytes, first: int, offset: int, finish: bytes = b"null") -> bytes:
        names = [b'"%s"' % bytes([byte]) for byte in text]
        values = [
            b"null" if byte == first else b"%r" % logprobs_of(byte, 0).chosen for byte in text
        ]
        tops = [
            b"null" if value == b"null" else b"{%s:%s}" % (name, value)
            for name, value in zip(names, values, strict=True)
        ]
        offsets = [b"%d" % (offset + number) for number in range(len(text))]
        return choice + b'"%s","logprobs":{%s},"finish_reason":%s}]}\n\n' % (
            text,
            b",".join(
                b'"%s":[%s]' % (name, b",".join(column))
                for name, column in (
                    (b"tokens", names),
                    (b"token_logprobs", values),
                    (b"top_logprobs", tops),
                    (b"text_offset", offsets),
                )
            ),
            finish,
        )

    assert reply.body == b"".join(
        [
            event(b"ab", ord("a"), 0),
            event(b"x", 0, 2),
            event(b"eny", 0, 3),
            choice + b'"","logprobs":null,"finish_reason":"stop"}]}\n\n',
            b"data: [DONE]\n\n",
        ]
    )


@pytest.mark.parametrize("path", [CHATS, COMPLETIONS])
def test_who_does_not_ask_gets_the_same_bytes_as_ever(path):
    body = (CHAT if path == CHATS else {"prompt": "hi"}) | {"stream": True}
    reply = post(path, body, says(b"a\xc3", b"\xa9", b"\x00", finish=FinishReason.STOP))
    assert reply.body.count(b'"logprobs":null') == reply.body.count(b'"finish_reason"')
    assert b"usage" not in reply.body
    assert b"seeds" not in reply.body
    whole = post(path, body | {"stream": False})
    assert [choice["logprobs"] for choice in whole.json()["choices"]] == [None]


def test_an_echo_without_log_probabilities_is_a_chunk_of_text():
    body = {"prompt": ["a", "b"], "n": 2, "echo": True, "stream": True}
    *events, _ = post(COMPLETIONS, body, says(b"x", b"y")).events()
    pieces = [choice for event in events for choice in event["choices"]]
    for index, prompt in enumerate("aabb"):
        own = [piece for piece in pieces if piece["index"] == index]
        assert [piece["text"] for piece in own] == [prompt, "x", "y", ""]
        assert all(piece["logprobs"] is None for piece in own)


def test_a_prompt_without_text_still_tells_its_values():
    body = {"prompt": [BOS, BOS], "echo": True, "logprobs": 0, "max_tokens": 0}
    whole = post(COMPLETIONS, body, says(b"x")).json()["choices"][0]
    assert whole["text"] == ""
    assert whole["logprobs"]["token_logprobs"] == [None, logprobs_of(BOS, 0).chosen]
    *events, _ = post(COMPLETIONS, body | {"stream": True}, says(b"x")).events()
    assert events[0]["choices"][0]["logprobs"] == whole["logprobs"]


def test_what_cannot_be_chosen_is_finite_in_json():
    """``logprobs`` with ``top_k`` 1 has broken servers: every other token is at −inf."""

    def script(request):
        never = TokenLogprobs(0.0, ((97, 0.0), *((98 + i, float("-inf")) for i in range(4))))
        return [[Delta(0, (97,), FinishReason.LENGTH, logprobs=(never,))]]

    fields = {"top_k": 1, "temperature": 1}
    reply = post(COMPLETIONS, {"prompt": "x", "logprobs": 5} | fields, script)
    assert reply.json()["choices"][0]["logprobs"]["top_logprobs"] == [
        {"a": 0.0, "b": -9999.0, "c": -9999.0, "d": -9999.0, "e": -9999.0}
    ]
    reply = post(CHATS, CHAT | {"logprobs": True, "top_logprobs": 5} | fields, script)
    assert b"nfinity" not in reply.body
    assert len(reply.json()["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 5


def test_many_values_leave_others_their_turn():
    """Guards against an event loop that stands still while a long prompt's values are written."""

    async def main():
        router = ScriptedRouter(says(b"x"))
        body = {"prompt": [97] * 2000, "echo": True, "logprobs": 5, "max_tokens": 0}
        app = http_app(router, context_length=4096)
        turns = 0
        task = asyncio.create_task(call(app, "POST", COMPLETIONS, body))
        while not task.done():
            await asyncio.sleep(0)
            turns += bool(router.requests)
        return turns, await task

    turns, reply = asyncio.run(main())
    assert len(reply.json()["choices"][0]["logprobs"]["tokens"]) == 2000
    assert turns > 30
