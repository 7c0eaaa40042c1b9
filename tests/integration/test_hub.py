"""The Hub on real Ray: its figures are what clients saw, and its death harms nobody."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import signal
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import openai
import psutil
import pytest

from support.service import Service, running_service, wait_until

pytestmark = pytest.mark.timeout(400)

MODEL = "smollm2-135m-instruct"
ROUTERS, REPLICAS = 2, 3
CONFIG = {
    "engine": {"simulated_step_ms": 5.0, "kv_memory": "64MiB", "max_sequences": 8},
    "telemetry": {"per_token_target_s": 0.5, "price_per_replica_hour": 2.0},
}


class Load:
    """Clients that count what they get."""

    def __init__(self, service: Service) -> None:
        self.outcomes: Counter[str] = Counter()
        self.tokens = 0
        self._lock = threading.Lock()
        self._url = f"{service.url}/v1"

    def ask(self, number: int) -> None:
        """One request on a connection of its own, so that all routers get some."""
        with openai.OpenAI(base_url=self._url, api_key="-", max_retries=0) as client:
            try:
                answer = client.completions.create(
                    model=MODEL,
                    prompt=[number % 50 + 1] * (1 + number * 37 % 400),
                    max_tokens=1 + number * 7 % 40,
                    extra_body={"ignore_eos": True},
                )
            except openai.APIError as error:
                outcome, tokens = f"{type(error).__name__}: {error}", 0
            else:
                assert answer.usage is not None
                outcome, tokens = "finished", answer.usage.completion_tokens
        with self._lock:
            self.outcomes[outcome] += 1
            self.tokens += tokens

    def run(self, number: int) -> None:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            list(pool.map(self.ask, range(number)))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Eight clients, one request after the other, until the block ends."""
        stopped = threading.Event()

        def go_on(first: int) -> None:
            number = first
            while not stopped.is_set():
                self.ask(number)
                number += 8

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            clients = [pool.submit(go_on, first) for first in range(8)]
            try:
                yield
            finally:
                stopped.set()
            for client in clients:
                client.result()


def figures(service: Service) -> dict[str, Any] | None:
    """None while nobody has any."""
    try:
        with urllib.request.urlopen(f"{service.url}/dashboard/figures", timeout=5.0) as answer:
            known: dict[str, Any] = json.load(answer)
            return known
    except OSError:
        return None


def totals(service: Service) -> dict[str, Any]:
    known = figures(service)
    return known["totals"] if known is not None else {}


def hub_process(service: Service) -> psutil.Process | None:
    for process in service.descendants():
        with contextlib.suppress(psutil.Error):
            if process.cmdline() and process.cmdline()[0].startswith("ray::Hub"):
                return process
    return None


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    flags = ("--replicas", str(REPLICAS), "--routers", str(ROUTERS))
    with running_service(*flags, config=CONFIG) as running:
        yield running


def test_figures_are_what_clients_counted_before_and_after_the_hubs_death(service: Service) -> None:
    load = Load(service)
    load.run(120)

    def agree() -> bool:
        known = totals(service)
        return (
            known.get("started") == sum(load.outcomes.values())
            and known["finished"] == load.outcomes["finished"]
            and known["output_tokens"] == load.tokens
            and known["open"] == 0
            and known["balanced"] is True
        )

    wait_until(agree, 10.0, "totals that are the clients' counts")
    known = figures(service)
    assert known is not None
    assert known["routers"] == ROUTERS and len(known["replicas"]) == REPLICAS
    assert load.outcomes == {"finished": 120}

    hub = hub_process(service)
    assert hub is not None
    with load.running():
        served = load.outcomes["finished"]
        wait_until(lambda: load.outcomes["finished"] > served + 20, 30.0, "load")
        at_least = totals(service)["started"]
        os.kill(hub.pid, signal.SIGKILL)
        killed_at = time.monotonic()

        def back() -> bool:
            now = hub_process(service)
            return (
                now is not None
                and now.pid != hub.pid
                and totals(service).get("started", 0) >= at_least
            )

        # About two seconds on an idle machine, most of them for the start of a process.
        wait_until(back, 15.0, "figures of a new Hub, with all that was counted before")
        print(f"figures back after {time.monotonic() - killed_at:.2f} s")
        served = load.outcomes["finished"]
        wait_until(lambda: load.outcomes["finished"] > served + 20, 30.0, "load")
    assert set(load.outcomes) == {"finished"}, "no request failed"
    wait_until(agree, 10.0, "totals that are the clients' counts, once more")
