"""Pictures and ledgers over HTTP, with a ledger that was recorded a moment ago."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from chairlift.cluster.errors import Unauthorized, Unavailable
from chairlift.deployments import rider_pages
from chairlift.deployments.asgi import Exchange
from chairlift.deployments.rider_pages import RiderPages
from support.asgi_client import Reply, call
from support.engines import Rig
from support.http_app import http_app
from support.ledgers import FakeClock, record


def some_ledger() -> bytes:
    rig = Rig()
    ledger = record(rig)
    rig.submit(0, max_tokens=5, ignore_eos=True, tenant="acme")
    rig.run_until_idle()
    return ledger.content()


class Fetched:
    """Stands in for ``router.ledgers``; keeps what it was asked for."""

    def __init__(self, content: bytes) -> None:
        self.asked: list[tuple[str, int]] = []
        self.fault: Exception | None = None
        self._content = content

    async def __call__(self, replica_id: str, steps: int) -> bytes:
        self.asked.append((replica_id, steps))
        await asyncio.sleep(0)
        if self.fault is not None:
            raise self.fault
        return self._content


def get(
    endpoint: Callable[[Exchange], Awaitable[None]], path: str, query: str = ""
) -> Awaitable[Reply]:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["query_string"] = query.encode()
        await endpoint(Exchange(scope, receive, send))

    return call(app, "GET", path)


@pytest.fixture
def fetched() -> Fetched:
    return Fetched(some_ledger())


def refuse(exchange: Exchange) -> None:
    raise Unauthorized("no")


def test_the_picture_is_made_once_for_all_who_ask_within_seconds(fetched: Fetched) -> None:
    clock = FakeClock()
    pages = RiderPages(fetched, refuse, clock)

    async def main() -> None:
        ask = lambda: get(pages.riders, "/dashboard/riders", "replica=r-1")  # noqa: E731
        replies = await asyncio.gather(*(ask() for _ in range(5)))
        assert {reply.status for reply in replies} == {200}
        assert len({reply.body for reply in replies}) == 1
        assert fetched.asked == [("r-1", 240)]
        (rider,) = replies[0].json()["riders"]
        assert (rider["tenant"], rider["output"]) == ("acme", 5)
        assert rider["ran"] == [{"seat": 0, "first": 0, "last": 4, "prompt": 1}]
        clock.now += rider_pages.KEEP_S
        await ask()
        assert len(fetched.asked) == 2

    asyncio.run(main())


def test_a_fault_is_told_and_the_next_one_tries_again(fetched: Fetched) -> None:
    pages = RiderPages(fetched, refuse)

    async def main() -> None:
        fetched.fault = Unavailable("r-1 keeps no ledger", code="no_ledger")
        with pytest.raises(Unavailable, match="keeps no ledger"):
            await get(pages.riders, "/dashboard/riders", "replica=r-1")
        fetched.fault = None
        assert (await get(pages.riders, "/dashboard/riders", "replica=r-1")).status == 200

    asyncio.run(main())


def test_a_ledger_that_cannot_be_drawn_says_why() -> None:
    pages = RiderPages(Fetched(b"no ledger at all"), refuse)
    with pytest.raises(Unavailable, match="No picture: the ledger") as raised:
        asyncio.run(get(pages.riders, "/dashboard/riders", "replica=r-1"))
    assert raised.value.code == "no_picture"


def test_a_ledger_is_for_those_only_who_may_act(fetched: Fetched) -> None:
    path = "/replicas/r-1/ledger"
    with pytest.raises(Unauthorized):
        asyncio.run(get(RiderPages(fetched, refuse).ledger, path))
    assert fetched.asked == []
    reply = asyncio.run(get(RiderPages(fetched, lambda _: None).ledger, path))
    assert fetched.asked == [("r-1", 0)]
    assert reply.body == asyncio.run(fetched("r-1", 0))
    assert reply.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/dashboard/riders", 400, "invalid_value"),
        ("/replicas/r-1/ledger", 403, "not_local"),
    ],
)
def test_what_the_application_answers_to_a_stranger(path: str, status: int, code: str) -> None:
    reply = asyncio.run(call(http_app(), "GET", path, forwarded="for=203.0.113.9"))
    assert (reply.status, reply.error["code"]) == (status, code)
