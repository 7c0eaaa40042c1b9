import asyncio

import pytest

from support.asgi_client import Reply, call
from support.fake_router import FakeRouter
from support.http_app import CHAT, http_app

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def ask(traceparent: str, router: FakeRouter) -> Reply:
    return asyncio.run(
        call(http_app(router), "POST", "/v1/chat/completions", CHAT, traceparent=traceparent)
    )


def test_the_clients_span_goes_on_to_the_router_and_the_requests_comes_back() -> None:
    router = FakeRouter()
    reply = ask(PARENT, router)
    assert [request.traceparent for request in router.requests] == [PARENT]
    # This router traces nothing, so it is still the client's.
    assert reply.headers["traceparent"] == PARENT


@pytest.mark.parametrize("text", ["", "nonsense", PARENT.replace("00-4", "ff-4")])
def test_a_malformed_span_is_ignored(text: str) -> None:
    router = FakeRouter()
    reply = ask(text, router)
    assert reply.status == 200
    assert "traceparent" not in reply.headers
    assert [request.traceparent for request in router.requests] == [""]
