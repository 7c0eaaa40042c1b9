"""Ten thousand clients come, and vanish at a moment of their own.

Some say half of what they wanted to say, some all of it, some read a while. Each closes its
connection without a word, half of them in the rudest way that TCP knows. Nothing may stay behind.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from dataclasses import asdict, dataclass

import orjson
import psutil

from chairlift.evaluation.drill_client import DrillClient, Question, drill_client, in_loop
from chairlift.evaluation.drill_ends import claims_of_ends, seconds_until_idle
from chairlift.evaluation.drill_report import Report, at_most, exactly
from chairlift.evaluation.drill_service import Service, engine_section, running_service

__all__ = ["VanishSettings", "drill", "request_bytes", "run"]

KINDS = ("silent", "half the headers", "half the body", "whole", "streaming", "streaming, read")
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER for 0 seconds: closing sends a reset."""

MEGABYTE = 1e6


@dataclass(frozen=True, slots=True)
class VanishSettings:
    """``warm_up``: clients after which the router's memory is first looked at."""

    clients: int = 10_000
    warm_up: int = 2000
    at_once: int = 300
    stay_s: float = 0.6
    idle_within_s: float = 2.0
    memory_growth: float = 0.05
    output_tokens: int = 200
    replicas: int = 3
    step_ms: float | None = 30.0

    @classmethod
    def real(cls) -> VanishSettings:
        return cls(clients=600, warm_up=200, at_once=30, replicas=1, step_ms=None)

    @property
    def config(self) -> dict[str, object]:
        return {
            "engine": engine_section(32, "128MiB", self.step_ms),
            "workers": {"replicas": self.replicas},
        }


def run(settings: VanishSettings) -> Report:
    """On a service of its own."""
    with running_service(config=settings.config) as service:
        return in_loop(drill(service, settings))


async def drill(service: Service, settings: VanishSettings) -> Report:
    """On a service that runs and has nothing to do."""
    report = Report("vanish", asdict(settings))
    (pid,) = service.router_pids()
    router = psutil.Process(pid)
    async with drill_client(service.url) as client:
        model = await client.model()
        crowd = _Crowd(service.port, model, settings)
        await crowd.come_and_go(settings.warm_up)
        await seconds_until_idle(client, 60.0, settings.replicas)
        warm = router.memory_info().rss
        await crowd.come_and_go(settings.clients - settings.warm_up)
        idle = await seconds_until_idle(client, 30.0, settings.replicas)
        grown = router.memory_info().rss
        status = await _trivial(client, model)
        report.claims = [
            at_most("seconds until nothing of them was left", idle, settings.idle_within_s),
            at_most("growth of the router's memory", (grown - warm) / warm, settings.memory_growth),
            exactly("trivial requests that failed right after", status, 0),
            *await claims_of_ends(client, settings.replicas),
        ]
        page = await client.metrics()
    report.figures = {
        "clients": dict(crowd.kinds),
        "clients that could not connect": crowd.turned_away,
        "router memory after the warm-up, MB": warm / MEGABYTE,
        "router memory at the end, MB": grown / MEGABYTE,
        "requests that started": page.total("chairlift_requests_started_total"),
        "requests cancelled": page.total("chairlift_requests_cancelled_total"),
    }
    return report


async def _trivial(client: DrillClient, model: str) -> int:
    """1 if it failed."""
    body = {"model": model, "prompt": "Hello", "max_tokens": 4}
    return int((await client.ask(Question("completions", body))).failure is not None)


class _Crowd:
    """Clients of raw sockets.

    Attributes:
        kinds: clients that came, by what they said.
        turned_away: clients that could not connect.
    """

    def __init__(self, port: int, model: str, settings: VanishSettings) -> None:
        self.kinds: Counter[str] = Counter()
        self.turned_away = 0
        self._port = port
        self._model = model
        self._settings = settings
        self._rng = random.Random(0)

    async def come_and_go(self, number: int) -> None:
        """So many, a bounded number at once; returns when the last one has gone."""
        left = iter(range(number))

        async def one_after_the_other() -> None:
            for _ in left:
                await self._visit()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(number, self._settings.at_once)):
                tasks.create_task(one_after_the_other())

    async def _visit(self) -> None:
        kind = self._rng.choice(KINDS)
        rude = self._rng.random() < 0.5
        stay_s = self._rng.uniform(0.0, self._settings.stay_s)
        words = request_bytes(kind, self._model, self._settings.output_tokens, self._rng)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            self.turned_away += 1
            return
        self.kinds[kind] += 1
        writer.write(words)
        if kind == "streaming, read":
            await _read_for(reader, stay_s)
        else:
            await asyncio.sleep(stay_s)
        if rude:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.transport.abort()


async def _read_for(reader: asyncio.StreamReader, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(4096):
                pass
    except (TimeoutError, OSError):
        pass


def request_bytes(kind: str, model: str, output_tokens: int, rng: random.Random) -> bytes:
    """What a client of that kind sends."""
    if kind == "silent":
        return b""
    body = {
        "model": model,
        "prompt": "word " * rng.randint(1, 200),
        "max_tokens": rng.randint(1, output_tokens),
        "ignore_eos": True,
        "stream": kind.startswith("streaming"),
    }
    content = orjson.dumps(body)
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    ).encode()
    if kind == "half the headers":
        return head[: len(head) // 2]
    if kind == "half the body":
        return head + content[: len(content) // 2]
    return head + content
