"""Every router and worker of a cluster is replaced under load, as by ``serve deploy``.

A setting of the engine changes, so that Serve replaces all of both deployments, one after the
other, over several nodes. Clients come through HAProxy, which finds routers where they are.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass

from chairlift.evaluation.drill_balancer import balancer
from chairlift.evaluation.drill_client import Answer, drill_client, in_loop
from chairlift.evaluation.drill_cluster import DrillCluster
from chairlift.evaluation.drill_network import Network
from chairlift.evaluation.drill_report import Report, at_most, exactly
from chairlift.evaluation.drill_rounds import Round, ask_all, claims_of_sameness, undisturbed
from chairlift.evaluation.drill_router import claims_of_all_ends
from chairlift.evaluation.drill_service import engine_section

__all__ = ["UpgradeSettings", "run"]


@dataclass(frozen=True, slots=True)
class UpgradeSettings:
    """``requests`` are asked over ``duration_s``, again and again until all is replaced."""

    requests: int = 40
    duration_s: float = 5.0
    replaced_s: float = 240.0
    output_tokens: int = 60
    nodes: int = 3
    routers: int = 2
    step_ms: float | None = 60.0

    def config(self, token_budget: int) -> dict[str, object]:
        return {
            "engine": engine_section(64, "64MiB", self.step_ms) | {"token_budget": token_budget},
            "workers": {"replicas": self.nodes},
            "router": {"replicas": self.routers},
        }


def run(settings: UpgradeSettings) -> Report:
    """On a cluster of its own."""
    with Network() as network, DrillCluster(network) as cluster:
        cluster.add_nodes(settings.nodes)
        cluster.deploy(settings.config(512))
        cluster.wait_until_running(settings.nodes)
        with balancer(cluster, cluster.nodes) as url:
            return in_loop(_drill(cluster, url, settings))


async def _drill(cluster: DrillCluster, url: str, settings: UpgradeSettings) -> Report:
    report = Report("upgrade", asdict(settings))
    async with drill_client(url) as client:
        calm = await undisturbed(
            client, settings.requests, settings.output_tokens, settings.duration_s / 2
        )
        old = cluster.serving()
        start = time.monotonic()
        change = asyncio.create_task(_replaced(cluster, old, settings))
        answers: list[Answer] = []
        while not change.done():
            answers += await ask_all(client, calm.questions, settings.duration_s)
        replaced_at = await change
        rounds = len(answers) // settings.requests
        asked = Round(calm.questions * rounds, answers)
        report.claims = [
            exactly("old routers and workers left", len(old & cluster.serving()), 0),
            at_most(
                "until all were replaced, s",
                None if replaced_at is None else replaced_at - start,
                settings.replaced_s,
            ),
            *claims_of_sameness(calm.answers * rounds, answers),
            *await claims_of_all_ends(cluster, settings.nodes),
        ]
    report.figures = {
        "requests during the upgrade": len(answers),
        "longest gap in a stream, undisturbed, s": calm.longest_gap,
        "longest gap in a stream, disturbed, s": asked.longest_gap,
    }
    return report


async def _replaced(
    cluster: DrillCluster, old: set[int], settings: UpgradeSettings
) -> float | None:
    """Change the configuration; returns when nothing of the old one was left."""
    await asyncio.to_thread(cluster.deploy, settings.config(384))
    deadline = time.monotonic() + settings.replaced_s
    while time.monotonic() < deadline:
        if not old & await asyncio.to_thread(cluster.serving):
            await asyncio.to_thread(cluster.wait_until_running, settings.nodes)
            return time.monotonic()
        await asyncio.sleep(0.5)
    return None
