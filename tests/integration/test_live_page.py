"""The dashboard and a replica's ledger on real Ray, under traffic."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import random
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chairlift.deployments.cli import main
from chairlift.workers.ledger_file import open_ledger
from chairlift.workers.replay import replay
from chairlift.workers.riders import riders
from support.browser import BROWSER, browse, text_of
from support.service import Service, running_service, wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(BROWSER is None, reason="there is no chromium"),
]

CONFIG = {
    "engine": {"simulated_step_ms": 10.0, "kv_memory": "64MiB", "max_sequences": 8},
}


@contextlib.contextmanager
def traffic(service: Service) -> Iterator[None]:
    """Twenty-four clients for two replicas of eight seats, outputs of very different lengths."""
    stopped = threading.Event()

    def ask(number: int) -> None:
        pick = random.Random(number)
        while not stopped.is_set():
            body = {
                "model": "smollm2-135m-instruct",
                "prompt": [pick.randrange(1000)] * pick.randint(5, 300),
                "max_tokens": min(400, 1 + int(pick.lognormvariate(3.5, 0.9))),
                "ignore_eos": True,
            }
            request = urllib.request.Request(
                f"{service.url}/v1/completions",
                json.dumps(body).encode(),
                {"content-type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.read()

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        clients = [pool.submit(ask, number) for number in range(24)]
        try:
            yield
        finally:
            stopped.set()
            for client in clients:
                client.result()


def get(service: Service, path: str) -> Any:
    with urllib.request.urlopen(f"{service.url}{path}", timeout=60) as answer:
        return json.loads(answer.read())


def test_a_page_under_traffic_and_the_ledger_behind_it(tmp_path: Path) -> None:
    with running_service("--replicas", "2", config=CONFIG) as service, traffic(service):

        def busy() -> bool:
            with contextlib.suppress(urllib.error.HTTPError):
                replicas = get(service, "/dashboard/figures")["replicas"].values()
                return len(replicas) == 2 and all((r["running"] or 0) >= 6 for r in replicas)
            return False

        wait_until(busy, 60, "both replicas busy")
        replica_id, other = get(service, "/dashboard/figures")["replicas"]
        wait_until(
            lambda: get(service, f"/dashboard/riders?replica={replica_id}")["ran"]["steps"] == 240,
            60,
            "a picture of 240 steps",
        )
        found = get(service, f"/dashboard/riders?replica={replica_id}")
        assert found["seats"] == 8
        assert found["ran"]["occupancy"] > found["static"]["occupancy"]
        assert found["static"]["steps"] > 240
        document = browse(service.url, tmp_path, "--dump-dom", "--window-size=1280,5000", seconds=8)
        text = text_of(document)
        assert re.search(r"Requests [\d.]+/s 0 failed", text)
        assert re.search(r"240 steps, \d+\.\d % of the seats taken", text)
        assert re.search(r"\d\.\d+ times as many steps\.", text)
        saved = tmp_path / "saved.ledger"
        command = ["ledger", "--url", service.url, "--replica", other, "-o", str(saved)]
        assert main(command) == 0
        ledger = open_ledger(saved)
        assert ledger.header.replica_id == other
        assert replay(ledger.header, ledger).difference is None
        assert riders(ledger.header, ledger).ran.steps == 240
