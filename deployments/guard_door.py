"""The Guard over HTTP: how it stands, and orders by hand.

Owns what they look like:

    GET  /guard                            how it stands, for everybody who may see ``/metrics``
    POST /guard/{hold,release,approve}     {"by": "name"}
    POST /guard/set                        {"by": "name", "rung": "reserve", "set": {…}}

Orders are for operators, whose keys say who it is, or where there are none for whoever is on this
machine (``deployments.operators``). It decides nothing (``deployments.guard_keeper``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

import orjson

from chairlift.cluster.errors import (
    InvalidRequest,
    NotFound,
    Unavailable,
    UnsupportedMediaType,
)
from chairlift.cluster.guard_policy import rung_named
from chairlift.deployments.asgi import Exchange
from chairlift.deployments.guard_keeper import Order
from chairlift.deployments.guard_view import OFF
from chairlift.deployments.json_body import read_object
from chairlift.deployments.operators import Operators

__all__ = ["GuardDoor", "GuardSource"]

Action: TypeAlias = Literal["hold", "release", "set", "approve"]
ACTIONS: tuple[Action, ...] = ("hold", "release", "set", "approve")

MAX_BODY = 64 * 1024
BODY_TIMEOUT_S = 10.0
MAX_NAME = 64
_FRESH = (b"cache-control", b"no-store")


class GuardSource(Protocol):
    """The way to the Guard, as ``deployments.hub_link.HubLink`` is."""

    def guard(self) -> Awaitable[dict[str, Any] | None]: ...

    def act(self, order: Order, /) -> Awaitable[dict[str, Any]]: ...


class GuardDoor:
    """Answers for every router alike."""

    def __init__(
        self,
        source: GuardSource | None = None,
        operators: Operators | None = None,
    ) -> None:
        """Open it.

        Args:
            source: None where there is no Guard.
            operators: who may give orders; by default, whoever is on this machine.
        """
        self._source = source
        self._operators = operators or Operators()

    def endpoints(self) -> dict[str, tuple[str, Any]]:
        """Path → method and endpoint."""
        orders = {f"/guard/{each}": ("POST", partial(self._act, each)) for each in ACTIONS}
        return {"/guard": ("GET", self._show), **orders}

    async def _show(self, exchange: Exchange) -> None:
        view = OFF if self._source is None else await self._source.guard()
        if view is None:
            raise Unavailable(
                "the Hub does not answer; what is in force stays", code="no_hub", retry_after_s=2.0
            )
        await exchange.respond(200, orjson.dumps(view), headers=[_FRESH])

    async def _act(self, action: Action, exchange: Exchange) -> None:
        operator = self.who(exchange)
        # A form of a web page can send neither this type nor, unasked, any that is not its own.
        kind = (exchange.header("content-type") or "").split(";")[0].strip().lower()
        if kind != "application/json":
            raise UnsupportedMediaType("Send JSON, with Content-Type: application/json")
        body = read_object(await exchange.read_json(MAX_BODY, BODY_TIMEOUT_S))
        if self._source is None:
            raise NotFound("the Guard is off", code="guard_off")
        view = await self._source.act(_read_order(action, body, operator))
        await exchange.respond(200, orjson.dumps(view), headers=[_FRESH])

    def who(self, exchange: Exchange) -> str | None:
        """As ``Operators.find``."""
        return self._operators.find(exchange)


def _read_order(action: Action, body: Mapping[str, Any], operator: str | None) -> Order:
    known = ("by", "rung", "set") if action == "set" else ("by",)
    for name in body:
        if name not in known:
            raise InvalidRequest(
                f"{name[:100]}: unknown field; there are {', '.join(known)}",
                param=name[:100],
                code="unknown_parameter",
            )
    by = operator or _read_name(body.get("by"))
    rung, overrides = body.get("rung"), body.get("set")
    if overrides is not None and not isinstance(overrides, dict):
        raise InvalidRequest("set: must be an object", param="set")
    try:
        return Order(action, by, None if rung is None else rung_named(rung), overrides or {})
    except ValueError as error:
        raise InvalidRequest(f"rung: {error}", param="rung") from None


def _read_name(value: object) -> str:
    if isinstance(value, str) and 0 < len(value.strip()) <= MAX_NAME and value.isprintable():
        return value.strip()
    raise InvalidRequest(f"by: your name is needed, of 1 to {MAX_NAME} characters", param="by")
