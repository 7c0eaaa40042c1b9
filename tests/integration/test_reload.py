"""A configuration that changes under load, on real Ray: no request may notice."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from pathlib import Path

import openai
import pytest

from support.service import Service, running_service, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

APPLIED = b"configuration applied"
APPLIED_DEADLINE_S = 120.0
CONFIG = """
engine: {{simulated_step_ms: 10, max_sequences: 16}}
workers: {{replicas: {workers}}}
router: {{replicas: {routers}, look_ahead: {look_ahead}}}
"""


class Clients:
    """Ask without pause, some over kept connections, some over new ones; nothing is tried twice."""

    def __init__(self, url: str) -> None:
        self.answers = Counter[str]()
        self.faults: list[str] = []
        self._url = url
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(8)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        client = self._client()
        while not self._done.is_set():
            try:
                text = self._ask(client, number)
            except openai.OpenAIError as error:
                self.faults.append(repr(error))
            else:
                self.answers[text] += 1
            if number % 2:
                client.close()
                client = self._client()
        client.close()

    def _client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self._url}/v1", api_key="-", max_retries=0)

    @staticmethod
    def _ask(client: openai.OpenAI, number: int) -> str:
        arguments = {"model": "smollm2-135m-instruct", "prompt": [1] * 40, "max_tokens": 16}
        if number % 4 < 2:
            return client.completions.create(**arguments, seed=5).choices[0].text
        stream = client.completions.create(**arguments, seed=5, stream=True)
        return "".join(choice.text for chunk in stream for choice in chunk.choices)


def change(service: Service, config: Path, said: bytes = APPLIED, **values: int) -> None:
    """Change the file and wait until the service says what became of it."""
    config.write_text(CONFIG.format(**{"workers": 1, "routers": 1, "look_ahead": 2} | values))
    before = service.output.read_bytes().count(said)
    service.process.send_signal(signal.SIGHUP)
    wait_until(
        lambda: service.output.read_bytes().count(said) > before,
        APPLIED_DEADLINE_S,
        f"{said!r} after {values}",
    )


def test_scaling_and_replacing_costs_no_client_a_request(tmp_path: Path) -> None:
    config = tmp_path / "service.yaml"
    config.write_text(CONFIG.format(workers=1, routers=1, look_ahead=2))
    with running_service("--config", str(config)) as service:
        workers = service.worker_pids()
        with Clients(service.url) as clients:
            change(service, config, look_ahead=3)
            assert service.worker_pids() == workers, "workers go on when a router is replaced"
            change(service, config, look_ahead=3, workers=2, routers=2)
            assert set(workers) < set(service.worker_pids())
            assert service.live_replicas() == 2
            change(service, config, look_ahead=3, workers=1, routers=1)
            served = clients.answers.total()
            wait_until(lambda: clients.answers.total() > served + 20, 30.0, "more answers")
        assert clients.faults == []
        assert len(clients.answers) == 1, "every answer is the same"

        change(service, config, b"old one stays: router.look_ahead", look_ahead=-1)
        assert service.live_replicas() == 1
