"""One of the workers that compute a copy of the model together dies, or hangs.

What that copy ran goes on at another one, which never noticed; the whole group is replaced, and
nothing of it is left: no process, no memory that its workers had shared.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from chairlift.evaluation.drill_client import drill_client, in_loop
from chairlift.evaluation.drill_ends import claims_of_ends
from chairlift.evaluation.drill_report import Report, at_least, at_most, exactly
from chairlift.evaluation.drill_rounds import ask_all, claims_of_sameness, pauses, undisturbed
from chairlift.evaluation.drill_service import Service, engine_section, running_service

__all__ = ["RankSettings", "drill", "run"]

POLL_S = 0.02
GONE_DEADLINE_S = 10.0
_SHARED = Path("/dev/shm")  # nosec B108  # it only looks


@dataclass(frozen=True, slots=True)
class RankSettings:
    """``gone_s`` bounds the time from the blow to the end of the last process of the group.

    ``longest_pause_s`` bounds the longest pause of each stream, less its usual one.
    """

    blow: str = "SIGKILL"
    requests: int = 60
    duration_s: float = 4.0
    blow_after_s: float = 2.5
    longest_pause_s: float = 2.0
    gone_s: float = 2.0
    output_tokens: int = 60
    replicas: int = 2
    tensor_parallel: int = 2
    step_ms: float | None = 60.0

    @classmethod
    def real(cls) -> RankSettings:
        return cls(requests=24, output_tokens=240, step_ms=None)

    @classmethod
    def hang(cls, *, real: bool) -> RankSettings:
        return replace(cls.real() if real else cls(), blow="SIGSTOP")

    @property
    def config(self) -> dict[str, object]:
        return {
            "engine": engine_section(64, "256MiB", self.step_ms),
            "workers": {"replicas": self.replicas, "tensor_parallel": self.tensor_parallel},
        }


def run(settings: RankSettings) -> Report:
    """On a service of its own."""
    before = _shared_memory()
    with running_service(config=settings.config) as service:
        report = in_loop(drill(service, settings))
    left = len(_shared_memory() - before)
    report.claims.append(exactly("files of shared memory left after the end", left, 0))
    return report


async def drill(service: Service, settings: RankSettings) -> Report:
    """On a service that runs and has nothing to do."""
    report = Report("rank", asdict(settings))
    async with drill_client(service.url) as client:
        calm = await undisturbed(
            client, settings.requests, settings.output_tokens, settings.duration_s
        )
        before = (await client.metrics()).by_label("chairlift_moves_total", "reason")
        disturbance = asyncio.create_task(_strike(service, settings))
        answers = await ask_all(client, calm.questions, settings.duration_s)
        gone = await disturbance
        after = (await client.metrics()).by_label("chairlift_moves_total", "reason")
        moved = {reason: number - before[reason] for reason, number in after.items()}
        paused, usual = pauses(answers), pauses(calm.answers)
        report.claims = [
            at_least("choices that moved", sum(moved.values()), 1),
            at_most("longest pause less the usual one, s", max(paused), settings.longest_pause_s),
            at_most(
                "from the blow to the end of the group's last process, s", gone, settings.gone_s
            ),
            *claims_of_sameness(calm.answers, answers),
            *await claims_of_ends(client, settings.replicas),
        ]
    report.figures = {
        "choices that moved": moved,
        "longest pause less the usual one, undisturbed, s": max(usual),
    }
    return report


async def _strike(service: Service, settings: RankSettings) -> float | None:
    """Hit rank 1 of one group; returns the seconds until all of that group had ended.

    Which ranks belong together cannot be seen from outside, but as many as a group has end.
    """
    await asyncio.sleep(settings.blow_after_s)
    followers = await asyncio.to_thread(service.follower_pids)
    leaders = await asyncio.to_thread(service.worker_pids)
    workers = [psutil.Process(pid) for pid in [*leaders, *followers]]
    survivors = len(workers) - settings.tensor_parallel
    start = time.monotonic()
    os.kill(followers[0], signal.Signals[settings.blow])
    while sum(map(_lives, workers)) > survivors:
        if time.monotonic() - start > GONE_DEADLINE_S:
            return None
        await asyncio.sleep(POLL_S)
    return time.monotonic() - start


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _shared_memory() -> set[str]:
    return {path.name for path in _SHARED.glob("chairlift-*")}
