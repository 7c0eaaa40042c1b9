"""Who may see the Guard, who may act, and how an order is read."""

import asyncio
import json
from typing import Any

import pytest

from chairlift.cluster.errors import Unavailable
from chairlift.cluster.guard_state import Rung
from chairlift.cluster.keys import KeyRing, hash_key
from chairlift.deployments.guard_door import GuardDoor
from chairlift.deployments.guard_keeper import Order
from chairlift.deployments.operators import Operators
from support.asgi_client import Client, Reply, call
from support.http_app import http_app

VIEW = {"mode": "act", "rung": "normal"}
KEYS = {hash_key("a-key"): "ann", hash_key("b-key"): "bob"}


class FakeGuard:
    """Implements ``GuardSource``; ill: it does not answer."""

    def __init__(self, *, ill: bool = False) -> None:
        self.orders: list[Order] = []
        self.ill = ill

    async def guard(self) -> dict[str, Any] | None:
        return None if self.ill else VIEW

    async def act(self, order: Order) -> dict[str, Any]:
        if self.ill:
            raise Unavailable("the Hub does not answer", code="no_hub")
        self.orders.append(order)
        return VIEW | {"by": order.by}


def ask(
    guard: FakeGuard | None,
    path: str,
    body: object = None,
    *,
    keys: dict[str, str] | None = None,
    address: str | None = "127.0.0.1",
    **headers: str,
) -> Reply:
    """GET without a body, else POST; the type is JSON unless a header says otherwise."""
    app = http_app(guard=GuardDoor(guard, Operators(KeyRing(keys or {}))))
    method = "GET" if body is None else "POST"
    sent = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        named.setdefault("content-type", "application/json")
    client = Client(app, method, path, body=[sent], headers=named)
    client.scope["client"] = None if address is None else (address, 50000)
    return asyncio.run(client.run())


def test_everybody_sees_how_it_stands() -> None:
    reply = ask(FakeGuard(), "/guard", address="10.0.0.7", keys=KEYS)
    assert (reply.status, reply.json()) == (200, VIEW)
    assert reply.headers["cache-control"] == "no-store"


def test_without_a_guard_it_is_off() -> None:
    assert ask(None, "/guard").json() == {"mode": "off"}
    reply = ask(None, "/guard/hold", {"by": "ann"})
    assert (reply.status, reply.error["code"]) == (404, "guard_off")


def test_a_hub_that_does_not_answer_is_told() -> None:
    for reply in (
        ask(FakeGuard(ill=True), "/guard"),
        ask(FakeGuard(ill=True), "/guard/hold", {"by": "ann"}),
    ):
        assert (reply.status, reply.error["code"]) == (503, "no_hub")


@pytest.mark.parametrize("action", ["hold", "release", "approve"])
def test_orders_carry_a_name(action: str) -> None:
    guard = FakeGuard()
    reply = ask(guard, f"/guard/{action}", {"by": " ann "})
    assert (reply.status, reply.json()["by"]) == (200, "ann")
    assert guard.orders == [Order(action, "ann")]  # type: ignore[arg-type]  # one of its literals


@pytest.mark.parametrize("rung", ["reserve", "RESERVE", 5])
def test_set_takes_a_rung_and_fields_of_controls(rung: object) -> None:
    guard = FakeGuard()
    body = {"by": "ann", "rung": rung, "set": {"token_budget": 256}}
    assert ask(guard, "/guard/set", body).status == 200
    assert guard.orders == [Order("set", "ann", Rung.RESERVE, {"token_budget": 256})]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("hold", {}, "by"),
        ("hold", {"by": ""}, "by"),
        ("hold", {"by": "a\nb"}, "by"),
        ("hold", {"by": "x" * 65}, "by"),
        ("hold", {"by": 3}, "by"),
        ("hold", {"by": "ann", "rung": 3}, "rung"),
        ("set", {"by": "ann", "rung": "highest"}, "rung"),
        ("set", {"by": "ann", "rung": 11}, "rung"),
        ("set", {"by": "ann", "rung": True}, "rung"),
        ("set", {"by": "ann", "set": ["token_budget"]}, "set"),
        ("approve", [], None),
    ],
)
def test_what_makes_no_sense_is_refused_by_field(path: str, body: object, param: object) -> None:
    guard = FakeGuard()
    reply = ask(guard, f"/guard/{path}", body)
    assert (reply.status, reply.error["param"]) == (400, param)
    assert guard.orders == []


def test_operators_are_known_by_their_keys_from_anywhere() -> None:
    guard = FakeGuard()
    for body in ({}, {"by": "somebody else"}):
        reply = ask(
            guard, "/guard/hold", body, keys=KEYS, address="10.0.0.7", authorization="Bearer b-key"
        )
        assert (reply.status, reply.json()["by"]) == (200, "bob")


@pytest.mark.parametrize(
    ("key", "code"), [(None, "missing_api_key"), ("Bearer c-key", "invalid_api_key")]
)
def test_with_operators_nobody_else_may_act(key: str | None, code: str) -> None:
    guard = FakeGuard()
    headers = {} if key is None else {"authorization": key}
    reply = ask(guard, "/guard/hold", {"by": "ann"}, keys=KEYS, **headers)
    assert (reply.status, reply.error["code"]) == (401, code)
    assert guard.orders == []


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", [None, "localhost:8000", "127.0.0.1", "[::1]:8000"])
def test_without_operators_whoever_is_on_this_machine_may_act(address: str, host: object) -> None:
    headers = {} if host is None else {"host": str(host)}
    assert ask(FakeGuard(), "/guard/hold", {"by": "ann"}, address=address, **headers).status == 200


@pytest.mark.parametrize(
    ("address", "headers"),
    [
        ("10.0.0.7", {}),
        ("::ffff:10.0.0.7", {}),
        (None, {}),
        ("127.0.0.1", {"host": "evil.example"}),
        ("127.0.0.1", {"host": "localhost.evil.example:8000"}),
        ("127.0.0.1", {"x_forwarded_for": "127.0.0.1"}),
        ("127.0.0.1", {"forwarded": "for=10.0.0.7"}),
    ],
)
def test_whoever_may_be_elsewhere_may_not_act(address: str | None, headers: dict[str, str]) -> None:
    guard = FakeGuard()
    reply = ask(guard, "/guard/hold", {"by": "ann"}, address=address, **headers)
    assert (reply.status, reply.error["code"]) == (403, "not_local")
    assert guard.orders == []


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/vnd.api+json"]
)
def test_a_form_of_a_web_page_cannot_act(kind: str) -> None:
    guard = FakeGuard()
    reply = ask(guard, "/guard/hold", b'{"by": "ann"}', content_type=kind)
    assert reply.status == 415
    assert guard.orders == []


def test_looking_is_not_acting() -> None:
    app = http_app(guard=GuardDoor(FakeGuard()))
    assert asyncio.run(call(app, "POST", "/guard", {"by": "ann"})).status == 405
    assert asyncio.run(call(app, "GET", "/guard/hold")).status == 405
