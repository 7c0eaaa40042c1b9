"""Whatever a body holds, the answer is 200 or an error of the client, and nothing stays open."""

import asyncio
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.http_bodies import PATHS, TAKING, bodies, described_bodies, values
from support.asgi_client import call
from support.fake_router import FakeRouter
from support.http_app import http_app


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
