"""Inputs that have broken other servers: each gets its 4xx, and the next request its answer."""

import asyncio
import http.client
import json
import socket

import pytest

from chairlift.cluster.config import HttpConfig
from chairlift.deployments.http_server import HttpServer
from support.asgi_client import call
from support.chain import CONTEXT_LENGTH, Chain, running_chain
from support.fake_router import FakeRouter
from support.http_app import CHAT, USER, http_app

CHATS = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TRIVIAL = {"prompt": "hi", "max_tokens": 2}

IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
BAD_COMPLETIONS = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [""]}, "prompt[0]"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": ["x"] * 5000}, "prompt"),
    ({"prompt": [257]}, "prompt[0]"),
    ({"prompt": [-1]}, "prompt[0]"),
    ({"prompt": [["65"]]}, "prompt[0][0]"),
    ({"prompt": [1] * CONTEXT_LENGTH}, "prompt"),
    ({"prompt": [1] * (CONTEXT_LENGTH + 1)}, "prompt"),
    ({"prompt": [1] * (CONTEXT_LENGTH - 1), "max_tokens": 2}, "max_tokens"),
    ({"prompt": "x" * 4_000_000}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 0, "echo": False}, "max_tokens"),
    ({"max_tokens": 0, "echo": True, "prompt": [1] * CONTEXT_LENGTH}, "prompt"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"logit_bias": {"AI": 1}}, "logit_bias"),
    ({"logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 1000}}, "logit_bias"),
    ({"logit_bias": {"1": float("nan")}}, "logit_bias"),
    ({"logit_bias": {"1": float("inf")}}, "logit_bias"),
    ({"logit_bias": {"1": float("-inf")}}, "logit_bias"),
    ({"logit_bias": {str(token): 1 for token in range(10_000)}}, "logit_bias"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 3}, "repetition_penalty"),
    ({"min_tokens": 17}, "min_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"logprobs": 10**9}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"top_logprobs": 10**9}, "top_logprobs"),
    ({"cache_salt": "x" * 257}, "cache_salt"),
    ({"n": 5 * 10**6}, "n"),
    ({"n": 2, "best_of": 1}, "best_of"),
    ({"allowed_token_ids": list(range(2000))}, "allowed_token_ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"allowed_token_ids": [0, 257]}, "allowed_token_ids[1]"),
    ({"allowed_token_ids": ["1"]}, "allowed_token_ids[0]"),
    ({"stop": ["x"] * 65}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids[0]"),
    ({"unknown": 1, "n": 2}, "unknown"),
]
BAD_CHATS = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "martian", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [USER, {"role": "user", "content": [IMAGE]}]}, "messages[1].content[0].type"),
    ({"messages": [{"role": "user", "content": "x" * 4_000_000}]}, "messages"),
    ({"max_completion_tokens": 10**9}, "max_completion_tokens"),
    ({"logprobs": True, "top_logprobs": 10**9}, "top_logprobs"),
    ({"top_logprobs": 5}, "top_logprobs"),
    ({"logprobs": 5}, "logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"presence_penalty": -3}, "presence_penalty"),
    ({"logit_bias": {"AI": 1}}, "logit_bias"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
]
NO_JSON = [
    b"",
    b"{",
    b"[]",
    b"\xff\xfe\x00",
    b"[" * 10_000 + b"]" * 10_000,
]
DEEP = [(b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "a"), (b'{"a":{},"stop":' + b"[" * 999, "stop")]
NO_NUMBERS = [
    (b'{"prompt":"hi","temperature":1e999}', "temperature"),
    (b'{"prompt":"hi","logit_bias":{"1":-1e999}}', "logit_bias"),
]
REFUSED = [
    *[(COMPLETIONS, {"prompt": "hi", **bad}, param) for bad, param in BAD_COMPLETIONS],
    *[(CHATS, {**CHAT, **bad}, param) for bad, param in BAD_CHATS],
    *[(COMPLETIONS, body, param) for body, param in [*NO_NUMBERS, *DEEP]],
    *[(path, body, None) for path in (CHATS, COMPLETIONS) for body in NO_JSON],
]


def send(chain: Chain, path: str, body: object, **headers: str) -> tuple[int, dict]:
    connection = http.client.HTTPConnection(chain.url.removeprefix("http://"), timeout=30)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request("POST", path, data, {"content-type": "application/json", **headers})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_every_bad_input_is_refused_by_name_and_the_next_request_is_served():
    async def main():
        async with running_chain() as chain:
            for path, body, param in REFUSED:
                status, answer = await asyncio.to_thread(send, chain, path, body)
                assert (status, answer["error"]["param"]) == (400, param), str(body)[:200]
                assert len(answer["error"]["message"]) < 500
                status, answer = await asyncio.to_thread(send, chain, COMPLETIONS, TRIVIAL)
                assert (status, answer["usage"]["completion_tokens"]) == (200, 2)
            await chain.until_idle()
            assert chain.router.metrics.started == len(REFUSED)

    asyncio.run(main())


@pytest.mark.parametrize(
    "good",
    [
        {"prompt": [1] * (CONTEXT_LENGTH - 1), "max_tokens": 1},
        {"prompt": [1] * (CONTEXT_LENGTH - 1)},
        {"prompt": "hi", "user": "me", "top_k": 10**9},
        {"prompt": "hi", "logit_bias": {}, "presence_penalty": 0},
    ],
)
def test_what_only_looks_bad_is_served(good):
    async def main():
        async with running_chain() as chain:
            status, _ = await asyncio.to_thread(send, chain, COMPLETIONS, good)
            assert status == 200
            await chain.until_idle()

    asyncio.run(main())


def test_a_prompt_beyond_the_kv_cache_is_refused_at_once_and_a_small_one_behind_it_is_served():
    async def main():
        router = FakeRouter()
        router.max_sequence_tokens = 50  # the whole KV cache; the model's context is 100
        app = http_app(router)
        reply = await call(app, "POST", COMPLETIONS, {"prompt": [1] * 60, "max_tokens": 1})
        assert (reply.status, reply.error["param"]) == (400, "prompt")
        assert (await call(app, "POST", COMPLETIONS, TRIVIAL)).status == 200

    asyncio.run(main())


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/json; charset=utf-8", 200),
    ],
)
def test_the_content_type_must_be_json(kind, status):
    async def main():
        reply = await call(http_app(), "POST", COMPLETIONS, TRIVIAL, content_type=kind)
        assert reply.status == status
        if status != 200:
            assert reply.error["code"] == "unsupported_media_type"

    asyncio.run(main())


async def listening(**config: object) -> tuple[HttpServer, str]:
    server = HttpServer(http_app(config=HttpConfig(**config)), "127.0.0.1", 0)
    return server, f"127.0.0.1:{await server.start()}"


def upload(address: str, size: int, *, chunked: bool) -> tuple[int, int]:
    """Send ``size`` bytes, and then a trivial request; the status of both."""
    connection = http.client.HTTPConnection(address, timeout=30)
    pieces = (b"x" * 65536 for _ in range(size // 65536))
    headers = {"content-type": "application/json"} | (
        {} if chunked else {"content-length": str(size)}
    )
    connection.request("POST", COMPLETIONS, pieces, headers, encode_chunked=chunked)
    response = connection.getresponse()
    response.read()
    connection.request("POST", COMPLETIONS, json.dumps(TRIVIAL).encode())
    again = connection.getresponse()
    again.read()
    connection.close()
    return response.status, again.status


@pytest.mark.parametrize("chunked", [False, True])
def test_a_hundred_megabytes_are_refused_and_the_connection_stays_good(chunked):
    async def main():
        server, address = await listening()
        try:
            statuses = await asyncio.to_thread(upload, address, 100 * 2**20, chunked=chunked)
        finally:
            await server.stop(1.0)
        assert statuses == (413, 200)

    asyncio.run(main())


def drip(address: str) -> bytes:
    """Send a body that never ends; what came back until the server hung up."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    return answer


def test_a_body_that_never_arrives_is_given_up_while_others_are_served():
    async def main():
        server, address = await listening(body_timeout_s=0.2)
        try:
            slow = asyncio.create_task(asyncio.to_thread(drip, address))
            chain = Chain(f"http://{address}", None, None, None)
            status, _ = await asyncio.to_thread(send, chain, COMPLETIONS, TRIVIAL)
            assert status == 200
            answer = await slow
        finally:
            await server.stop(1.0)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"body_timeout" in answer

    asyncio.run(main())
