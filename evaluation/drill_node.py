"""A node of a cluster loses its power, with a worker on it, while requests run there.

Nothing says goodbye: packets are lost from one moment to the next, and only silence tells. What ran
there goes on elsewhere; once Ray misses the node, another replica is started on those that are
left.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass

from chairlift.evaluation.drill_client import DrillClient, drill_client, in_loop
from chairlift.evaluation.drill_cluster import DrillCluster, url_of
from chairlift.evaluation.drill_ends import claims_of_ends, seconds_until_idle
from chairlift.evaluation.drill_network import Network
from chairlift.evaluation.drill_report import Report, at_least, at_most
from chairlift.evaluation.drill_rounds import ask_all, claims_of_sameness, pauses, undisturbed
from chairlift.evaluation.drill_service import engine_section

__all__ = ["NodeSettings", "run"]


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """``longest_pause_s`` bounds the longest pause of each stream, less its usual one.

    ``back_s`` bounds the time until there are as many live replicas as before.
    """

    requests: int = 90
    duration_s: float = 6.0
    blow_after_s: float = 3.0
    longest_pause_s: float = 2.0
    back_s: float = 60.0
    output_tokens: int = 60
    nodes: int = 3
    step_ms: float | None = 60.0

    @property
    def config(self) -> dict[str, object]:
        return {
            "engine": engine_section(64, "64MiB", self.step_ms),
            "workers": {"replicas": self.nodes},
        }


def run(settings: NodeSettings) -> Report:
    """On a cluster of its own."""
    with Network() as network, DrillCluster(network) as cluster:
        cluster.add_nodes(settings.nodes)
        cluster.deploy(settings.config)
        cluster.wait_until_running(settings.nodes)
        return in_loop(_drill(cluster, settings))


async def _drill(cluster: DrillCluster, settings: NodeSettings) -> Report:
    report = Report("node", asdict(settings))
    (router,) = cluster.routers()
    async with drill_client(url_of(router)) as client:
        calm = await undisturbed(
            client, settings.requests, settings.output_tokens, settings.duration_s
        )
        blow = asyncio.create_task(_power_off(cluster, client, settings))
        answers = await ask_all(client, calm.questions, settings.duration_s)
        killed_at, lost = await blow
        await seconds_until_idle(client, settings.back_s + 10.0, settings.nodes)
        back = time.monotonic() - killed_at
        moved = (await client.metrics()).by_label("chairlift_moves_total", "reason")
        paused, usual = pauses(answers), pauses(calm.answers)
        report.claims = [
            at_least("replicas on the node", lost, 1),
            at_least("choices that moved", sum(moved.values()), 1),
            at_most("longest pause less the usual one, s", max(paused), settings.longest_pause_s),
            at_most("until all replicas were back, s", back, settings.back_s),
            *claims_of_sameness(calm.answers, answers),
            *await claims_of_ends(client, settings.nodes),
        ]
    report.figures = {
        "choices that moved": moved,
        "streams that paused for over a second": sum(pause > 1 for pause in paused),
        "longest pause less the usual one, undisturbed, s": max(usual),
    }
    return report


async def _power_off(
    cluster: DrillCluster, client: DrillClient, settings: NodeSettings
) -> tuple[float, int]:
    """Kill a node that has a worker and no router; returns when, and how many replicas it had."""
    (router,) = cluster.routers()
    victim = next(host for host in cluster.workers() if host is not router)
    replicas = len(victim.pids("ray::Worker"))
    await asyncio.sleep(settings.blow_after_s)
    at = time.monotonic()
    await asyncio.to_thread(victim.kill)
    return at, replicas
