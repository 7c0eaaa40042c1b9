"""Workers are killed, one after the other, while requests run on them.

Every few seconds one of those that serve gets SIGKILL, as if its machine had lost power; at least
one other serves at that time. Each request is asked twice: before the first kill, and during them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from chairlift.evaluation.drill_client import DrillClient, drill_client, in_loop
from chairlift.evaluation.drill_ends import claims_of_ends
from chairlift.evaluation.drill_report import Report, at_least
from chairlift.evaluation.drill_rounds import Round, ask_all, claims_of_sameness, undisturbed
from chairlift.evaluation.drill_service import Service, engine_section, running_service

__all__ = ["KillSettings", "drill", "run"]

CALM_SPEEDUP = 2.0
"""The undisturbed round may be faster: nothing is timed in it."""

POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class KillSettings:
    """``step_ms`` is None for the real model."""

    requests: int = 500
    duration_s: float = 36.0
    kill_every_s: float = 5.0
    least_kills: int = 5
    output_tokens: int = 40
    replicas: int = 3
    step_ms: float | None = 30.0

    @classmethod
    def real(cls) -> KillSettings:
        return cls(requests=60, duration_s=75.0, kill_every_s=12.0, output_tokens=24, step_ms=None)

    @property
    def config(self) -> dict[str, object]:
        return {
            "engine": engine_section(32, "128MiB", self.step_ms),
            "workers": {"replicas": self.replicas},
        }


def run(settings: KillSettings) -> Report:
    """On a service of its own."""
    with running_service(config=settings.config) as service:
        return in_loop(drill(service, settings))


async def drill(service: Service, settings: KillSettings) -> Report:
    """On a service that runs and has nothing to do."""
    report = Report("kill", asdict(settings))
    async with drill_client(service.url) as client:
        calm = await undisturbed(
            client,
            settings.requests,
            settings.output_tokens,
            settings.duration_s / CALM_SPEEDUP,
        )
        kills: list[int] = []
        with _killing(service, client, settings.kill_every_s, kills):
            answers = await ask_all(client, calm.questions, settings.duration_s)
        disturbed = Round(calm.questions, answers)
        report.claims = [
            at_least("kills", len(kills), settings.least_kills),
            *claims_of_sameness(calm.answers, answers),
            *await claims_of_ends(client, settings.replicas),
        ]
        page = await client.metrics()
    report.figures = {
        "choices that moved": page.by_label("chairlift_moves_total", "reason"),
        "output tokens": sum(answer.output_tokens for answer in calm.answers),
        "requests ended by a stop string": calm.stopped,
        "longest gap in a stream, undisturbed, s": calm.longest_gap,
        "longest gap in a stream, disturbed, s": disturbed.longest_gap,
    }
    return report


@contextlib.contextmanager
def _killing(
    service: Service, client: DrillClient, every_s: float, kills: list[int]
) -> Iterator[None]:
    """Kills one worker every so often, and notes its process id."""
    task = asyncio.create_task(_kill_for_ever(service, client, every_s, kills))
    try:
        yield
    finally:
        task.cancel()


async def _kill_for_ever(
    service: Service, client: DrillClient, every_s: float, kills: list[int]
) -> None:
    rng = random.Random(0)
    while True:
        await asyncio.sleep(every_s)
        live = 0
        while live < 2:
            live = sum(each.live for each in await client.health())
            await asyncio.sleep(POLL_S)
        # Those that are still starting are the youngest.
        serving = (await asyncio.to_thread(service.worker_pids))[:live]
        victim = rng.choice(serving)
        os.kill(victim, signal.SIGKILL)
        kills.append(victim)
