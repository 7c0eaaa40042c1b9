"""One of several routers behind HAProxy is killed while requests run through all of them.

What it was answering ends without an end, and clients know that it did: a stream lacks its last
event. They ask once more, and are told the same, for a request with a seed has one answer. All
others are not touched, and what the dead router's clients had under way gives its seats back.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from dataclasses import asdict, dataclass

from chairlift.evaluation.drill_balancer import balancer
from chairlift.evaluation.drill_client import DrillClient, drill_client, in_loop
from chairlift.evaluation.drill_cluster import ROUTER, DrillCluster, url_of
from chairlift.evaluation.drill_ends import claims_of_ends
from chairlift.evaluation.drill_network import Host, Network
from chairlift.evaluation.drill_report import Claim, Report, at_least, at_most, exactly
from chairlift.evaluation.drill_rounds import ask_all, claims_of_sameness, undisturbed
from chairlift.evaluation.drill_service import engine_section

__all__ = ["RouterSettings", "claims_of_all_ends", "run"]

BACK_DEADLINE_S = 30.0
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class RouterSettings:
    """The blow falls while requests are asked, which takes ``duration_s``."""

    requests: int = 120
    duration_s: float = 8.0
    blow_after_s: float = 4.0
    output_tokens: int = 60
    nodes: int = 3
    step_ms: float | None = 60.0

    @property
    def config(self) -> dict[str, object]:
        return {
            "engine": engine_section(64, "64MiB", self.step_ms),
            "workers": {"replicas": self.nodes},
            "router": {"replicas": self.nodes},
        }


def run(settings: RouterSettings) -> Report:
    """On a cluster of its own."""
    with Network() as network, DrillCluster(network) as cluster:
        cluster.add_nodes(settings.nodes)
        cluster.deploy(settings.config)
        cluster.wait_until_running(settings.nodes)
        with balancer(cluster, cluster.nodes) as url:
            return in_loop(_drill(cluster, url, settings))


async def _drill(cluster: DrillCluster, url: str, settings: RouterSettings) -> Report:
    report = Report("router", asdict(settings))
    routers = cluster.routers()
    victim = routers[-1]
    async with drill_client(url) as client, drill_client(url_of(victim)) as direct:
        calm = await undisturbed(
            client, settings.requests, settings.output_tokens, settings.duration_s
        )
        blow = asyncio.create_task(_kill(victim, direct, settings))
        answers = await ask_all(client, calm.questions, settings.duration_s)
        open_there = await blow
        cut = [place for place, answer in enumerate(answers) if answer.failure is not None]
        saw = [str(answers[place].failure) for place in cut]
        again = await ask_all(client, [calm.questions[place] for place in cut], 1.0)
        for place, answer in zip(cut, again, strict=True):
            answers[place] = answer
        await asyncio.to_thread(cluster.wait_until_running, settings.nodes)
        routers_then = await _count(cluster, settings.nodes)
        report.claims = [
            at_least("nodes with a router", len(routers), 2),
            at_least("requests open there when it was killed", open_there, 1),
            at_most("requests that clients had to ask again", len(cut), open_there),
            *claims_of_sameness(calm.answers, answers),
            exactly("routers at the end", routers_then, settings.nodes),
            *await claims_of_all_ends(cluster, settings.nodes),
        ]
    report.figures = {
        "what clients saw of these": dict(Counter(saw)),
        "streams among the requests": sum("stream" in each.body for each in calm.questions),
    }
    return report


async def claims_of_all_ends(cluster: DrillCluster, replicas: int) -> list[Claim]:
    """``claims_of_ends`` of every router."""
    claims = []
    for host in cluster.routers():
        async with drill_client(url_of(host)) as client:
            claims += await claims_of_ends(client, replicas)
    return claims


async def _count(cluster: DrillCluster, wanted: int) -> int:
    """Routers, which are given a while to be back; some may be on one node, and share its port."""
    deadline = time.monotonic() + BACK_DEADLINE_S
    while True:
        number = sum(len(host.pids(ROUTER)) for host in cluster.nodes)
        if number >= wanted or time.monotonic() > deadline:
            return number
        await asyncio.sleep(POLL_S)


async def _kill(victim: Host, client: DrillClient, settings: RouterSettings) -> int:
    """Returns how many requests were open there."""
    await asyncio.sleep(settings.blow_after_s)
    pids = await asyncio.to_thread(victim.pids, ROUTER)
    open_there = (await client.metrics()).total("chairlift_requests_open")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return int(open_there)
