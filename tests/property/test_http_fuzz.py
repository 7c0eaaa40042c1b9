"""Whatever a body holds, the answer is 200 or an error of the client, and nothing stays open."""

import asyncio
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.deployments.openai_schema import ChatBody, CompletionBody
from chairlift.deployments.openapi import describe
from support.asgi_client import call
from support.fake_router import FakeRouter
from support.http_app import CHAT, MODEL, http_app
from support.schema_values import values_of

PATHS = {
    "/v1/chat/completions": (CHAT, ChatBody),
    "/v1/completions": ({"prompt": "hi"}, CompletionBody),
}
DOCUMENT = describe(MODEL)
TAKING = {path: methods["post"] for path, methods in DOCUMENT["paths"].items() if "post" in methods}
UNSUPPORTED = ["prompt_logprobs", "tools", "response_format", "suffix", "echo", "top_logprobs"]

numbers = st.one_of(
    st.integers(-3, 130),
    st.integers(-(2**70), 2**70),
    st.floats(width=64),
    st.sampled_from([2**63, 2**64 - 1, -(2**63), 1e308, 5.0, -0.0]),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=8))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(
                st.sampled_from(["role", "content", "type", "text", "0", "256", "257"]),
                st.text(max_size=4),
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
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


def bodies(path: str) -> st.SearchStrategy[dict]:
    """Nearly right bodies: some fields of the endpoint, each with any value."""
    base, kind = PATHS[path]
    names = st.sampled_from([*kind.model_fields, *UNSUPPORTED])
    subject = {"messages": messages} if kind is ChatBody else {"prompt": prompts}
    return st.builds(
        lambda required, extra: {**base, **extra, **required},
        st.one_of(st.just({}), st.fixed_dictionaries(subject)),
        st.dictionaries(names, values, max_size=3),
    )


def check(path: str, body: bytes) -> None:
    router = FakeRouter()
    reply = asyncio.run(call(http_app(router), "POST", path, body))
    if reply.status == 200:
        assert reply.body
    else:
        assert reply.status in (400, 404)
        assert len(reply.error["message"]) < 1000
    assert (reply.status == 200) == bool(router.flights)
    router.check_idle()


@given(data=st.data(), path=st.sampled_from(sorted(PATHS)))
@settings(max_examples=150, deadline=None)
def test_any_values_in_the_known_fields(data, path):
    check(path, json.dumps(data.draw(bodies(path))).encode())


@given(path=st.sampled_from(sorted(PATHS)), value=values)
@settings(max_examples=100, deadline=None)
def test_any_json(path, value):
    check(path, json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@given(path=st.sampled_from(sorted(PATHS)), body=st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_any_bytes(path, body):
    check(path, body)


@given(
    path=st.sampled_from(sorted(PATHS)),
    cut=st.integers(0, 100),
    noise=st.binary(max_size=4),
)
@settings(max_examples=100, deadline=None)
def test_any_damage_to_a_good_body(path, cut, noise):
    base, _ = PATHS[path]
    good = json.dumps(base | {"n": 2, "stop": ["x"], "stream": True}).encode()
    check(path, good[:cut] + noise + good[cut + len(noise) :])


def described_bodies(path: str) -> st.SearchStrategy[dict]:
    """Bodies as the description has them, here and there with a field of another kind."""
    schema = TAKING[path]["requestBody"]["content"]["application/json"]["schema"]
    good = values_of(schema, DOCUMENT["components"]["schemas"])
    damage = st.one_of(st.just({}), st.dictionaries(st.sampled_from(NAMES), values, max_size=1))
    return st.builds(lambda body, other: {**body, **other}, good, damage)


NAMES = sorted({*ChatBody.model_fields, *CompletionBody.model_fields, "tokens", "by", "nobody"})


@given(data=st.data(), path=st.sampled_from(sorted(TAKING)))
@settings(max_examples=120, deadline=None)
def test_what_is_described_is_answered_as_described(data, path):
    body = json.dumps(data.draw(described_bodies(path))).encode()
    router = FakeRouter()
    kind = {"content_type": "application/json"}
    reply = asyncio.run(call(http_app(router), "POST", path, body, **kind))
    assert str(reply.status) in TAKING[path]["responses"]
    assert reply.status < 500
    if reply.status != 200:
        assert len(reply.error["message"]) < 1000
    router.check_idle()
