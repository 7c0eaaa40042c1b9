"""A worker is stopped without a word, and wakes up again later.

SIGSTOP leaves its connections open and its process in place: only its silence tells. What it ran
goes on elsewhere; when it wakes up, nobody waits for what it has to say.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from chairlift.evaluation.drill_client import Answer, DrillClient, Question, drill_client, in_loop
from chairlift.evaluation.drill_ends import claims_of_ends
from chairlift.evaluation.drill_report import Report, at_least, at_most
from chairlift.evaluation.drill_rounds import ask_all, claims_of_sameness, pauses, undisturbed
from chairlift.evaluation.drill_service import Service, engine_section, running_service

__all__ = ["StopSettings", "drill", "run"]

POLL_S = 0.05
AWAKE_DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class StopSettings:
    """``stopped_s`` is longer than routers wait for a word, shorter than Serve does.

    ``longest_pause_s`` bounds the longest pause of each stream, less its usual one.
    """

    requests: int = 90
    duration_s: float = 4.0
    stop_after_s: float = 3.0
    stopped_s: float = 3.5
    longest_pause_s: float = 2.0
    output_tokens: int = 60
    replicas: int = 3
    step_ms: float | None = 100.0

    @classmethod
    def real(cls) -> StopSettings:
        return cls(requests=18, output_tokens=60, step_ms=None)

    @property
    def config(self) -> dict[str, object]:
        return {
            "engine": engine_section(96, "256MiB", self.step_ms),
            "workers": {"replicas": self.replicas},
        }


def run(settings: StopSettings) -> Report:
    """On a service of its own."""
    with running_service(config=settings.config) as service:
        return in_loop(drill(service, settings))


async def drill(service: Service, settings: StopSettings) -> Report:
    """On a service that runs and has nothing to do."""
    report = Report("stop", asdict(settings))
    async with drill_client(service.url) as client:
        calm = await undisturbed(
            client, settings.requests, settings.output_tokens, settings.duration_s
        )
        before = (await client.metrics()).by_label("chairlift_moves_total", "reason")
        disturbance = asyncio.create_task(_stop_one(service, client, settings))
        answers = await ask_all(client, calm.questions, settings.duration_s)
        missed = await disturbance
        after = (await client.metrics()).by_label("chairlift_moves_total", "reason")
        moved = {reason: number - before[reason] for reason, number in after.items()}
        paused, usual = pauses(answers), pauses(calm.answers)
        few = len(calm.questions) // 3
        most, again = await _ask_until_used(client, calm.questions[:few], missed)
        expected = calm.answers + calm.answers[:few] * (len(again) // few)
        report.claims = [
            at_least("choices that moved", moved["lost"], 1),
            at_most("longest pause less the usual one, s", max(paused), settings.longest_pause_s),
            *claims_of_sameness(expected, answers + again),
            at_least("sequences on the woken replica, at their most", most, 1),
            *await claims_of_ends(client, settings.replicas),
        ]
    report.figures = {
        "choices that moved": moved,
        "streams that paused for over a second": sum(pause > 1 for pause in paused),
        "longest pause less the usual one, undisturbed, s": max(usual),
    }
    return report


async def _stop_one(service: Service, client: DrillClient, settings: StopSettings) -> str | None:
    """Stop a worker for a while; returns the id of the replica that routers missed."""
    await asyncio.sleep(settings.stop_after_s)
    victim = (await asyncio.to_thread(service.worker_pids))[0]
    os.kill(victim, signal.SIGSTOP)
    missed = None
    try:
        for _ in range(int(settings.stopped_s / POLL_S)):
            await asyncio.sleep(POLL_S)
            missed = missed or next((r.id for r in await client.health() if not r.live), None)
    finally:
        os.kill(victim, signal.SIGCONT)
    return missed


async def _ask_until_used(
    client: DrillClient, questions: Sequence[Question], replica_id: str | None
) -> tuple[int, list[Answer]]:
    """Ask again and again until the replica that had slept runs something.

    Returns the most that it ran, and all answers.
    """
    most, answers = 0, []

    async def watch() -> None:
        nonlocal most
        while True:
            for each in await client.health():
                if each.id == replica_id and each.live:
                    most = max(most, each.running or 0)
            await asyncio.sleep(POLL_S)

    watcher, start = asyncio.create_task(watch()), time.monotonic()
    while not most and time.monotonic() - start < AWAKE_DEADLINE_S:
        answers += await ask_all(client, questions, 1.0)
    watcher.cancel()
    return most, answers
