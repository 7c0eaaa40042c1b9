"""``chairlift guard`` against a server: what it sends, prints and returns."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chairlift.cluster.errors import InvalidRequest
from chairlift.cluster.guard_state import Mode, Rung
from chairlift.cluster.keys import KeyRing, hash_key
from chairlift.cluster.protocol import ENDLESS
from chairlift.deployments.cli import main
from chairlift.deployments.guard_door import GuardDoor
from chairlift.deployments.guard_keeper import Order
from chairlift.deployments.http_server import HttpServer
from chairlift.deployments.operators import Operators
from support.figures import guard_figures
from support.http_app import http_app

KEYS = {hash_key("a-key"): "ann"}


class FakeGuard:
    """Implements ``GuardSource``: refuses a rung above ``STATIC``."""

    def __init__(self, view: dict[str, Any]) -> None:
        self.view = view
        self.orders: list[Order] = []

    async def guard(self) -> dict[str, Any]:
        return self.view

    async def act(self, order: Order) -> dict[str, Any]:
        if order.rung is not None and order.rung > Rung.STATIC:
            raise InvalidRequest("rung: not so high", param="rung")
        self.orders.append(order)
        return self.view


@contextmanager
def serving(guard: FakeGuard | None, keys: dict[str, str] | None = None) -> Iterator[str]:
    ready, ports, ends = threading.Event(), [], []

    async def serve() -> None:
        door = GuardDoor(guard, Operators(KeyRing(keys or {})))
        server = HttpServer(http_app(guard=door), "127.0.0.1", 0)
        end = asyncio.Event()
        ends.append((asyncio.get_running_loop(), end))
        ports.append(await server.start())
        ready.set()
        await end.wait()
        await server.stop(1.0)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(10.0)
    try:
        yield f"http://127.0.0.1:{ports[0]}"
    finally:
        loop, end = ends[0]
        loop.call_soon_threadsafe(end.set)
        thread.join()


@pytest.fixture(scope="module")
def guard() -> Iterator[FakeGuard]:
    yield FakeGuard(figures())


@pytest.fixture(scope="module")
def url(guard: FakeGuard) -> Iterator[str]:
    with serving(guard) as address:
        yield address


def figures(**changes: Any) -> dict[str, Any]:
    view = guard_figures(**changes)
    for move in view["moves"]:
        move["text"] = "up normal → no_speculation\x1b[2J, for kv_use"
    view["signals"]["steps_left"]["value"] = float(ENDLESS)
    return view


def test_it_says_how_the_guard_stands(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guard", "--url", url]) == 0
    shown = capsys.readouterr().out
    for part in ("Rung 1, no_speculation", "token_budget=512", "up normal → no_speculation"):
        assert part in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("kv_use")]
    assert line.split() == ["kv_use", "0.97", "0.9", "replica-1", "capacity", "ACTIVE"]
    (line,) = [line for line in shown.splitlines() if line.startswith("steps_left")]
    assert line.split()[1] == "∞"
    assert "\x1b" not in shown, "nobody's text moves the cursor"


def test_json_is_the_view_itself(
    url: str, guard: FakeGuard, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["guard", "--url", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == guard.view


@pytest.mark.parametrize(
    ("words", "order"),
    [
        (["hold", "--by", "ann"], Order("hold", "ann")),
        (["release", "--by", "ann"], Order("release", "ann")),
        (["approve", "--by", "ann"], Order("approve", "ann")),
        (["set", "refuse-best-effort", "--by", "ann"], Order("set", "ann", Rung(3))),
        (["set", "3", "--by", "ann"], Order("set", "ann", Rung(3))),
        (
            ["set", "batching=static", "token_budget=256", "reserve=true", "5", "--by", "ann"],
            Order(
                "set",
                "ann",
                Rung.RESERVE,
                {"batching": "static", "token_budget": 256, "reserve": True},
            ),
        ),
    ],
)
def test_orders_are_sent_as_they_were_typed(
    words: list[str], order: Order, url: str, guard: FakeGuard
) -> None:
    assert main(["guard", *words, "--url", url]) == 0
    assert guard.orders.pop() == order


def test_the_login_name_stands_in_for_a_name(
    url: str, guard: FakeGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "carol")
    assert main(["guard", "hold", "--url", url]) == 0
    assert guard.orders.pop().by == "carol"


def test_the_key_says_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = FakeGuard(figures())
    with serving(guard, KEYS) as url:
        assert main(["guard", "hold", "--by", "somebody", "--url", url]) == 1
        monkeypatch.setenv("CHAIRLIFT_API_KEY", "a-key")
        assert main(["guard", "hold", "--by", "somebody", "--url", url]) == 0
    assert [order.by for order in guard.orders] == ["ann"]


def test_a_refusal_is_told_as_it_is(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guard", "set", "stop", "--by", "ann", "--url", url]) == 1
    assert capsys.readouterr().err == "chairlift guard: rung: not so high\n"


def test_nobody_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["guard", "--url", "http://127.0.0.1:9"]) == 1
    assert "chairlift serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["hold", "3"], ["set"], ["set", "3", "4"], ["--url", "nowhere"], ["set", "3", "-x"]]
)
def test_wrong_use_is_refused_before_anybody_is_asked(words: list[str]) -> None:
    try:
        assert main(["guard", *words]) == 2
    except SystemExit as end:
        assert end.code == 2


def test_a_guard_that_is_off_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(None) as url:
        assert main(["guard", "--url", url]) == 0
        assert capsys.readouterr().out == "The Guard is off.\n"
        assert main(["guard", "hold", "--by", "ann", "--url", url]) == 1


def test_what_a_person_has_to_know_stands_above(capsys: pytest.CaptureFixture[str]) -> None:
    view = figures(
        mode=Mode.SHADOW.value,
        held_by="ann",
        waiting_for="roll_back",
        frozen=True,
        overrides={"token_budget": 128},
    )
    with serving(FakeGuard(view)) as url:
        assert main(["guard", "--url", url]) == 0
    head = capsys.readouterr().out.split("signal")[0]
    for part in ("Shadow", "Held by ann", "roll_back waits", "Frozen", "token_budget=128"):
        assert part in head
