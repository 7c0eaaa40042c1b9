"""The Guard on real Ray: a person's word reaches routers and workers, and outlives the Hub."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from chairlift.cluster.protocol import Controls
from chairlift.deployments.follow_guard import GOOD_AFTER_S
from chairlift.workers.ledger_file import open_ledger
from chairlift.workers.ledger_records import Queued
from support.service import STOP_DEADLINE_S, Service, running_service, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

MODEL = "smollm2-135m-instruct"
ENGINE = {"simulated_step_ms": 5.0, "kv_memory": "64MiB", "max_sequences": 8}
ROUTERS = 2


def guard(service: Service, action: str = "", **body: Any) -> dict[str, Any]:
    """The view, after an order if there is one; {} while nobody answers."""
    path = f"{service.url}/guard/{action}".rstrip("/")
    data = json.dumps({"by": "ann"} | body).encode() if action else None
    call = urllib.request.Request(path, data, {"Content-Type": "application/json"})
    with contextlib.suppress(OSError), urllib.request.urlopen(call, timeout=5.0) as answer:
        view: dict[str, Any] = json.load(answer)
        return view
    return {}


def order(service: Service, action: str, **body: Any) -> dict[str, Any]:
    """The view after an order; tried until a Hub takes it, for it may have just started."""
    views: list[dict[str, Any]] = []

    def taken() -> bool:
        views.append(guard(service, action, **body))
        return bool(views[-1])

    wait_until(taken, 20.0, f"an order to be taken: {action} {body}")
    return views[-1]


def ask(service: Service, **fields: Any) -> tuple[int, str]:
    """Status and code of one completion, on a connection of its own, so by any router."""
    body = json.dumps({"model": MODEL, "prompt": [7] * 20, "max_tokens": 4} | fields).encode()
    headers = {"Content-Type": "application/json", "Connection": "close"}
    call = urllib.request.Request(f"{service.url}/v1/completions", body, headers)
    try:
        with urllib.request.urlopen(call, timeout=30.0) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["code"]


def refuses_batch(service: Service) -> bool:
    """Whether all routers do: of so many connections each has some."""
    return all(
        ask(service, priority="batch") == (429, "best_effort_refused") for _ in range(4 * ROUTERS)
    )


def hub_pid(service: Service) -> int | None:
    for process in service.descendants():
        with contextlib.suppress(psutil.Error):
            if process.cmdline() and process.cmdline()[0].startswith("ray::Hub"):
                return process.pid
    return None


def until_known(service: Service) -> dict[str, Any]:
    wait_until(lambda: bool(guard(service)), 30.0, "the Guard's view")
    return guard(service)


def test_a_word_is_obeyed_and_approved_to_the_end(tmp_path: Path) -> None:
    """The short one of all: set, obeyed by router and worker, stop, a clean end."""
    config = {"engine": ENGINE, "ledger": {"always": True, "folder": str(tmp_path)}}
    with running_service(config=config) as service:
        until_known(service)
        view = guard(service, "set", rung="refuse_best_effort", set={"token_budget": 128})
        assert (view["rung"], view["held_by"]) == ("refuse_best_effort", "ann")
        assert ask(service, priority="batch") == (429, "best_effort_refused")
        assert ask(service) == (200, "")
        assert guard(service, "set", set={"token_budget": 10**6}) == {}
        view = guard(service, "set", rung="stop")
        assert view["moves"][-1]["by"] == "ann"
        assert ask(service) == (429, "service_stopping")
        assert service.process.wait(STOP_DEADLINE_S) == 0
        said = service.output.read_text()
        assert "the Guard stops the service" in said and said.rstrip().endswith("stopped")
    told = [(each.version, each.reason, each.token_budget) for each in _controls(tmp_path)]
    first = view["version"] - 1
    assert told[-2:] == [
        (first, "set by ann → refuse_best_effort", 128),
        (first + 1, "set by ann → stop", 128),
    ]


def _controls(folder: Path) -> list[Controls]:
    """All that a worker's ledger tells to have been in force."""
    (file,) = folder.iterdir()
    inputs = [each.inputs for each in open_ledger(file) if isinstance(each, Queued)]
    return [each.controls for each in inputs if each.controls is not None]


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with running_service("--routers", str(ROUTERS), config={"engine": ENGINE}) as running:
        until_known(running)
        yield running


@pytest.mark.slow
def test_every_router_obeys_and_the_hubs_death_changes_nothing(service: Service) -> None:
    order(service, "set", rung="reserve")
    wait_until(lambda: refuses_batch(service), 10.0, "all routers refuse the lowest class")
    before, pid = guard(service), hub_pid(service)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert refuses_batch(service), "the last Controls stay in force"
    wait_until(lambda: hub_pid(service) not in (None, pid), 20.0, "another Hub")
    after = until_known(service)
    assert refuses_batch(service)
    assert (after["rung"], after["held_by"]) == ("reserve", "ann")
    assert after["version"] >= before["version"]
    assert after["moves"] == before["moves"]
    released = order(service, "set", rung="normal")
    assert released["version"] > before["version"]
    order(service, "release")
    wait_until(lambda: ask(service, priority="batch") == (200, ""), 10.0, "all are served again")


@pytest.mark.slow
def test_rolling_back_is_told_where_nothing_did_well_before(service: Service) -> None:
    order(service, "set", rung="roll_back")
    told = b"no earlier configuration did well"
    wait_until(lambda: told in service.output.read_bytes(), 10.0, "that there is none")
    order(service, "set", rung="normal")
    order(service, "release")
    assert ask(service) == (200, "")


@pytest.mark.slow
def test_the_last_configuration_that_did_well_comes_back(tmp_path: Path) -> None:
    """A minute on normal makes it good; the next one is left, and limits are those of before."""
    file = tmp_path / "service.yaml"
    file.write_text(yaml.safe_dump({"engine": ENGINE}))
    with running_service("--config", str(file)) as service:
        first = until_known(service)["controls"]["token_budget"]
        good_at = time.monotonic() + GOOD_AFTER_S + 5.0
        wait_until(lambda: time.monotonic() > good_at, 120.0, "a minute on normal")
        assert guard(service)["rung"] == "normal"
        file.write_text(yaml.safe_dump({"engine": ENGINE | {"token_budget": 64}}))
        service.process.send_signal(signal.SIGHUP)
        applied = b"configuration applied"
        wait_until(lambda: applied in service.output.read_bytes(), 90.0, "another configuration")
        wait_until(lambda: _budget(service) == 64, 30.0, "controls of the other configuration")
        order(service, "set", rung="roll_back")
        rolled = b"rolls back to the last configuration that did well"
        wait_until(lambda: rolled in service.output.read_bytes(), 20.0, "a roll back")
        wait_until(lambda: service.output.read_bytes().count(applied) == 2, 90.0, "its end")
        order(service, "set", rung="normal")
        order(service, "release")
        wait_until(lambda: _budget(service) == first, 30.0, "controls as before")
        assert ask(service) == (200, "")


def _budget(service: Service) -> int:
    return int(guard(service).get("controls", {}).get("token_budget", 0))
