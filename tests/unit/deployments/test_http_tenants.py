"""Who asks, in which class and until when, as HTTP has it."""

import asyncio
from typing import Any

import pytest

from chairlift.cluster.errors import DeadlineExceeded, RateLimited, Unavailable
from chairlift.cluster.protocol import Priority
from chairlift.cluster.tenants import Tenant, Tenants, hash_key
from support.asgi_client import Reply, call
from support.chain import expected_text, running_chain
from support.fake_router import FakeRouter
from support.http_app import CHAT, MODEL, http_app

CHATS = "/v1/chat/completions"
ACME = Tenant("acme", weight=2.5, priority=Priority.STANDARD, private_cache=True)
TENANTS = Tenants({hash_key("secret"): ACME}, None)


def ask(
    body: object = CHAT,
    router: FakeRouter | None = None,
    *,
    tenants: Tenants = TENANTS,
    path: str = CHATS,
    **headers: str,
) -> Reply:
    headers = {"authorization": "Bearer secret"} | headers
    app = http_app(router or FakeRouter(), tenants=tenants)
    method = "POST" if path == CHATS else "GET"
    return asyncio.run(call(app, method, path, body if method == "POST" else None, **headers))


def test_a_request_is_in_the_name_and_on_the_terms_of_its_tenant():
    router = FakeRouter()
    body = CHAT | {"cache_salt": "x", "priority": "batch", "deadline_ms": 1500}
    assert ask(body, router, x_request_timeout="2").status == 200
    (flight,) = router.flights
    request = flight.request
    assert (request.tenant, request.weight, request.priority) == ("acme", 2.5, Priority.BATCH)
    assert request.cache_salt == "acme=x"
    assert (flight.ask.tenant, flight.ask.deadline_s) == (ACME, 1.5)


@pytest.mark.parametrize("path", [CHATS, "/v1/models", f"/v1/models/{MODEL}", "/v1/nothing"])
@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("", "missing_api_key"),
        ("Basic c2VjcmV0", "missing_api_key"),
        ("Bearer x", "invalid_api_key"),
    ],
)
def test_without_a_known_key_nothing_is_told(path, authorization, code):
    router = FakeRouter()
    reply = ask(router=router, path=path, authorization=authorization)
    assert (reply.status, reply.error["code"]) == (401, code)
    assert reply.headers["www-authenticate"] == "Bearer"
    assert not router.flights


@pytest.mark.parametrize("path", ["/", "/health", "/metrics"])
def test_what_operators_look_at_needs_no_key(path):
    assert ask(path=path, authorization="").status == 200


def test_where_no_tenants_are_configured_any_key_will_do():
    router = FakeRouter()
    anyone = http_app(router).tenants
    for authorization in ("", "Bearer none", "Bearer sk-x"):
        assert ask(router=router, tenants=anyone, authorization=authorization).status == 200
    assert {request.tenant for request in router.requests} == {"anonymous"}


def test_a_tenant_named_anonymous_is_served_without_a_key_beside_others():
    router = FakeRouter()
    both = Tenants({hash_key("secret"): ACME}, Tenant("anonymous", priority=Priority.BATCH))
    assert ask(router=router, tenants=both).status == 200
    assert ask(router=router, tenants=both, authorization="").status == 200
    assert ask(router=router, tenants=both, authorization="Bearer x").status == 401
    assert [request.tenant for request in router.requests] == ["acme", "anonymous"]


@pytest.mark.parametrize(
    ("fields", "headers", "param"),
    [
        ({"priority": "interactive"}, {}, "priority"),
        ({"priority": "urgent"}, {}, "priority"),
        ({"priority": 1}, {}, "priority"),
        ({"priority": False}, {}, "priority"),
        ({"deadline_ms": 0}, {}, "deadline_ms"),
        ({"deadline_ms": -5}, {}, "deadline_ms"),
        ({"deadline_ms": 1.5}, {}, "deadline_ms"),
        ({"deadline_ms": "5"}, {}, "deadline_ms"),
        ({"deadline_ms": 10**16}, {}, "deadline_ms"),
        ({}, {"x_request_timeout": "soon"}, "X-Request-Timeout"),
    ],
)
def test_malformed_terms_are_refused_by_name(fields, headers, param):
    router = FakeRouter()
    reply = ask(CHAT | fields, router, **headers)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert not router.flights


def test_the_usual_priority_of_vllm_is_as_if_it_were_absent():
    router = FakeRouter()
    assert ask(CHAT | {"priority": 0}, router).status == 200
    assert router.requests[0].priority is ACME.priority


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RateLimited("too many", code="tenant_requests", retry_after_s=2.1), 429),
        (Unavailable("later", code="deadline_unreachable", retry_after_s=2.1), 503),
        (DeadlineExceeded("too late", retry_after_s=2.1), 504),
    ],
)
def test_refusals_say_why_and_when_to_come_back_at_once_or_after_a_wait(error, status, late):
    async def refuse_later() -> None:
        await asyncio.sleep(0)
        raise error

    def refuse(request: Any) -> object:
        if late:
            return refuse_later()
        raise error

    router = FakeRouter()
    router.admission = refuse
    reply = ask(router=router)
    assert (reply.status, reply.headers["retry-after"]) == (status, "3")
    assert reply.error["code"] == error.code
    router.check_idle()


def test_two_requests_with_one_id_are_two_requests():
    """Guards against state that is kept by the client's id, in the router or in the engine."""

    async def main() -> None:
        async with running_chain() as chain:
            app = http_app(chain.router)
            bodies = [
                {"prompt": [prompt] * 3, "max_tokens": 20, "seed": prompt, "ignore_eos": True}
                for prompt in (1, 2)
            ]
            replies = await asyncio.gather(
                *(
                    call(app, "POST", "/v1/completions", body, x_request_id="same")
                    for body in bodies
                )
            )
            said = [reply.json()["choices"][0]["text"] for reply in replies]
            assert said == [expected_text(body["prompt"], 20, seed=body["seed"]) for body in bodies]
            assert {reply.headers["x-request-id"] for reply in replies} == {"same"}
            await chain.until_idle()

    asyncio.run(main())
