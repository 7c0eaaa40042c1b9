"""A copy of the model is computed by two nodes together, over gloo, and the link between them goes.

The same questions are asked of a service on one machine whose ranks share memory: where ranks are
changes no token. Then the nodes lose each other, though both still have the router and the head.
The group ends as a whole, and requests wait for another one, and go on after the tokens that they
have.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass

from chairlift.evaluation.drill_client import Answer, drill_client, in_loop
from chairlift.evaluation.drill_cluster import DrillCluster, url_of
from chairlift.evaluation.drill_ends import claims_of_ends
from chairlift.evaluation.drill_network import Host, Network
from chairlift.evaluation.drill_report import Report, at_least, exactly
from chairlift.evaluation.drill_rounds import Round, ask_all, claims_of_sameness, undisturbed
from chairlift.evaluation.drill_service import engine_section, running_service

__all__ = ["ApartSettings", "run"]

RANKS = 2


@dataclass(frozen=True, slots=True)
class ApartSettings:
    """``step_ms`` is None for the real model, without which equal tokens show little."""

    requests: int = 12
    duration_s: float = 12.0
    blow_after_s: float = 3.0
    output_tokens: int = 32
    nodes: int = 3
    step_ms: float | None = None

    def config(self, transport: str) -> dict[str, object]:
        return {
            "engine": engine_section(16, "128MiB", self.step_ms),
            "workers": {"tensor_parallel": RANKS, "transport": transport, "threads": 1},
        }


def run(settings: ApartSettings) -> Report:
    """On one machine, then on a cluster."""
    with running_service(config=settings.config("shared")) as service:
        together = in_loop(_alone(service.url, settings))
    with Network() as network, DrillCluster(network) as cluster:
        cluster.add_nodes(settings.nodes)
        cluster.deploy(settings.config("gloo"))
        cluster.wait_until_running(1)
        return in_loop(_drill(cluster, together, settings))


async def _alone(url: str, settings: ApartSettings) -> Round:
    async with drill_client(url) as client:
        return await undisturbed(
            client, settings.requests, settings.output_tokens, settings.duration_s
        )


async def _drill(cluster: DrillCluster, together: Round, settings: ApartSettings) -> Report:
    report = Report("apart", asdict(settings))
    (router,) = cluster.routers()
    places = _places(cluster)
    async with drill_client(url_of(router)) as client:
        apart = await ask_all(client, together.questions, settings.duration_s)
        blow = asyncio.create_task(_part(places, settings))
        disturbed = await ask_all(client, together.questions, settings.duration_s)
        await blow
        page = await client.metrics()
        report.claims = [
            exactly("nodes of the group", len(places), RANKS),
            at_least("choices that moved", page.total("chairlift_moves_total"), 1),
            *claims_of_sameness(together.answers * 2, apart + disturbed),
            *await claims_of_ends(client, 1),
        ]
    report.figures = {
        "output tokens": sum(answer.output_tokens for answer in apart),
        "longest gap in a stream, shared memory, s": together.longest_gap,
        "longest gap in a stream, gloo, s": _gap(together, apart),
        "longest gap in a stream, link lost, s": _gap(together, disturbed),
    }
    return report


def _gap(asked: Round, answers: list[Answer]) -> float:
    return Round(asked.questions, answers).longest_gap


def _places(cluster: DrillCluster) -> list[Host]:
    """Nodes with a rank."""
    names = ("ray::Worker", "ray::FollowingWorker")
    return [host for host in cluster.nodes if any(host.pids(name) for name in names)]


async def _part(places: list[Host], settings: ApartSettings) -> None:
    """Let the nodes lose each other for a while."""
    await asyncio.sleep(settings.blow_after_s)
    for host in places:
        host.isolate()
    await asyncio.sleep(settings.duration_s)
    for host in places:
        host.isolate(False)
