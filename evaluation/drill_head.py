"""The head node of a cluster loses its power while requests run, and comes back after a while.

With it go Ray's tables and all that starts and replaces replicas; Redis, on another machine, keeps
the tables. Streams go on and new requests are served meanwhile, for no token passes the head. Once
it is back, a worker is killed to see whether it is replaced, as before.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import asdict, dataclass

from chairlift.evaluation.drill_client import DrillClient, drill_client, in_loop
from chairlift.evaluation.drill_cluster import DrillCluster, url_of
from chairlift.evaluation.drill_ends import claims_of_ends, seconds_until_idle
from chairlift.evaluation.drill_network import Network
from chairlift.evaluation.drill_report import Report, at_least, at_most
from chairlift.evaluation.drill_rounds import ask_all, claims_of_sameness, pauses, undisturbed
from chairlift.evaluation.drill_service import engine_section

__all__ = ["HeadSettings", "run"]

POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """The head is away for ``away_s``; ``requests`` are asked over ``duration_s``, which is longer.

    ``replaced_s`` bounds the time in which a worker that is killed afterwards is replaced.
    """

    requests: int = 160
    duration_s: float = 30.0
    blow_after_s: float = 3.0
    away_s: float = 20.0
    longest_pause_s: float = 0.5
    replaced_s: float = 60.0
    output_tokens: int = 60
    nodes: int = 2
    step_ms: float | None = 60.0

    @property
    def config(self) -> dict[str, object]:
        return {
            "engine": engine_section(64, "64MiB", self.step_ms),
            "workers": {"replicas": self.nodes},
        }


def run(settings: HeadSettings) -> Report:
    """On a cluster of its own."""
    with Network() as network, DrillCluster(network, redis=True) as cluster:
        cluster.add_nodes(settings.nodes)
        cluster.deploy(settings.config)
        cluster.wait_until_running(settings.nodes)
        return in_loop(_drill(cluster, settings))


async def _drill(cluster: DrillCluster, settings: HeadSettings) -> Report:
    report = Report("head", asdict(settings))
    (router,) = cluster.routers()
    async with drill_client(url_of(router)) as client:
        calm = await undisturbed(
            client, settings.requests, settings.output_tokens, settings.duration_s / 2
        )
        pids = cluster.serving()
        absence = asyncio.create_task(_absence(cluster, settings))
        answers = await ask_all(client, calm.questions, settings.duration_s)
        returned_s = await absence
        stayed = len(pids & cluster.serving())
        replaced_s = await _replacement(cluster, client, settings)
        paused, usual = pauses(answers), pauses(calm.answers)
        report.claims = [
            at_least("routers and workers that outlived the head", stayed, len(pids)),
            at_most("longest pause less the usual one, s", max(paused), settings.longest_pause_s),
            *claims_of_sameness(calm.answers, answers),
            at_most("until a worker was replaced, s", replaced_s, settings.replaced_s),
            *await claims_of_ends(client, settings.nodes),
        ]
    report.figures = {
        "from the head's start until Ray answered again, s": returned_s,
        "longest pause less the usual one, undisturbed, s": max(usual),
    }
    return report


async def _absence(cluster: DrillCluster, settings: HeadSettings) -> float:
    """Returns how long the head took to come back."""
    await asyncio.sleep(settings.blow_after_s)
    await asyncio.to_thread(cluster.head.kill)
    await asyncio.sleep(settings.away_s)
    start = time.monotonic()
    await asyncio.to_thread(cluster.start_head)
    return time.monotonic() - start


async def _replacement(
    cluster: DrillCluster, client: DrillClient, settings: HeadSettings
) -> float | None:
    """Kill a worker; returns the seconds until as many are live as before."""
    start = time.monotonic()
    os.kill(cluster.workers()[0].pids("ray::Worker")[0], signal.SIGKILL)
    missed = False
    while not missed:
        await asyncio.sleep(POLL_S)
        missed = not all(each.live for each in await client.health())
    if await seconds_until_idle(client, settings.replaced_s, settings.nodes) is None:
        return None
    return time.monotonic() - start
