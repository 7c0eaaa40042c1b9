"""Bodies of HTTP requests: nearly right ones, described ones, and what is no body at all."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from chairlift.deployments.guard_door import GuardDoor
from chairlift.deployments.guard_keeper import Order
from chairlift.deployments.openai_schema import ChatBody, CompletionBody
from chairlift.deployments.openapi import describe
from fuzz.damage import any_json, damaged, nested, noise
from fuzz.target import Feed, Refused, Target, need
from support.asgi_client import Client
from support.fake_router import FakeRouter
from support.http_app import CHAT, MODEL, http_app
from support.schema_values import values_of

__all__ = ["HTTP", "PATHS", "TAKING", "bodies", "described_bodies", "values"]

PATHS = {
    "/v1/chat/completions": (CHAT, ChatBody),
    "/v1/completions": ({"prompt": "hi"}, CompletionBody),
}
DOCUMENT = describe(MODEL)
TAKING = {path: methods["post"] for path, methods in DOCUMENT["paths"].items() if "post" in methods}
UNSUPPORTED = ["prompt_logprobs", "tools", "response_format", "suffix", "echo", "top_logprobs"]
NAMES = sorted({*ChatBody.model_fields, *CompletionBody.model_fields, "tokens", "by", "nobody"})

values = any_json(
    st.one_of(
        st.sampled_from(["role", "content", "type", "text", "0", "256", "257"]),
        st.text(max_size=4),
    )
)
roles = st.sampled_from(["system", "developer", "user", "assistant", "tool", "martian"])
parts = st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=8)}))
messages = st.lists(
    st.fixed_dictionaries(
        {"role": roles, "content": st.one_of(st.text(max_size=8), parts, values)}
    ),
    max_size=3,
)
prompts = st.one_of(
    st.text(max_size=120),
    st.lists(st.text(max_size=8), max_size=4),
    st.lists(st.integers(-1, 257), max_size=120),
    st.lists(st.lists(st.integers(0, 256), max_size=8), max_size=4),
    values,
)


def bodies(path: str) -> st.SearchStrategy[dict[str, Any]]:
    """Nearly right bodies: some fields of the endpoint, each with any value."""
    base, kind = PATHS[path]
    names = st.sampled_from([*kind.model_fields, *UNSUPPORTED])
    subject = {"messages": messages} if kind is ChatBody else {"prompt": prompts}
    return st.builds(
        lambda required, extra: {**base, **extra, **required},
        st.one_of(st.just({}), st.fixed_dictionaries(subject)),
        st.dictionaries(names, values, max_size=3),
    )


def described_bodies(path: str) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies as the description has them, here and there with a field of another kind."""
    schema = TAKING[path]["requestBody"]["content"]["application/json"]["schema"]
    good = values_of(schema, DOCUMENT["components"]["schemas"])
    damage = st.one_of(st.just({}), st.dictionaries(st.sampled_from(NAMES), values, max_size=1))
    return st.builds(lambda body, other: {**body, **other}, good, damage)


SEEDS: dict[str, list[Any]] = {
    "/v1/chat/completions": [
        CHAT | {"n": 2, "stop": ["x"], "stream": True, "logprobs": True, "top_logprobs": 2},
        CHAT | {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {
            "type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}},
        CHAT | {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]},
    ],
    "/v1/completions": [
        {"prompt": ["hi", "ho"], "logit_bias": {"3": 1.5}, "logprobs": 2, "echo": True},
        {"prompt": [[1, 2], [3]], "max_tokens": 3, "stream_options": {"include_usage": True}},
    ],
    "/guard/set": [{"by": "ann", "rung": "reserve", "set": {"token_budget": 8}}],
}  # fmt: skip
WORDS = [b"\\ud800", b"1e999", b"NaN", b"-0", b"null", b"\x00", b"\xff", b'"n":', b"[[", b'{"a":']
BRACKETS = ((b"[", b"]"), (b'{"a":', b"}"), (b'{"prompt":[', b"]}"), (b'{"tools":[{"a":', b"}]}"))


def _inputs(scratch: Path) -> st.SearchStrategy[bytes]:
    """The path, a line's end, and the body."""
    return st.sampled_from(sorted(TAKING)).flatmap(
        lambda path: _bodies_at(path).map(lambda body: path.encode() + b"\n" + body)
    )


def _bodies_at(path: str) -> st.SearchStrategy[bytes]:
    good = [json.dumps(body).encode() for body in SEEDS.get(path, [{"text": "a", "by": "b"}])]
    right = [described_bodies(path), *([bodies(path)] if path in PATHS else [])]
    return st.one_of(
        st.one_of(*right, values).map(
            lambda body: json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
        ),
        damaged(good, WORDS),
        nested(*BRACKETS),
        noise,
    )


class _Guard:
    async def guard(self) -> dict[str, Any] | None:
        return {}

    async def act(self, order: Order) -> dict[str, Any]:
        return {"by": order.by}


@contextmanager
def _open(scratch: Path) -> Iterator[Feed]:
    with asyncio.Runner() as runner:

        def feed(data: bytes) -> None:
            path, _, body = data.partition(b"\n")
            runner.run(_ask(path.decode(), body))

        yield feed


async def _ask(path: str, body: bytes) -> None:
    """A client error that says something, or an answer; and nothing stays open."""
    router = FakeRouter()
    app = http_app(router, guard=GuardDoor(_Guard()))
    headers = {"content-type": "application/json"}
    client = Client(app, "POST", path, body=[body], headers=headers)
    client.scope["client"] = ("127.0.0.1", 50000)
    reply = await client.run()
    router.check_idle()
    need(reply.complete, "the answer does not end")
    need(str(reply.status) in TAKING[path]["responses"], f"status {reply.status}")
    need(reply.status is not None and reply.status < 500, f"status {reply.status}")
    if reply.status != 200:
        need(len(reply.error["message"]) < 1000, "the message is long")
        raise Refused(reply.error["message"])


HTTP = Target("http bodies", _inputs, _open)
