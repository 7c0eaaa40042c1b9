"""A router loses a part of the cluster that lives on, and finds it again: a worker, or the Hub.

Two nodes lose all packets between each other, and both still have the head, so Ray sees nothing.

``partition``: a router and a worker. What ran there goes on elsewhere; afterwards it is used again.
``partition-hub``: a router, and the node with the Hub and another router. Serving goes on with what
the Guard had put in force; no figures are made up; afterwards they hold all that was counted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

import aiohttp

from chairlift.evaluation.drill_client import DrillClient, drill_client, in_loop
from chairlift.evaluation.drill_cluster import DrillCluster, url_of
from chairlift.evaluation.drill_ends import claims_of_ends
from chairlift.evaluation.drill_flood import hash_of, key_of
from chairlift.evaluation.drill_network import Host, Network
from chairlift.evaluation.drill_report import Report, at_least, at_most, exactly
from chairlift.evaluation.drill_rounds import (
    Round,
    ask_all,
    claims_of_sameness,
    pauses,
    undisturbed,
)
from chairlift.evaluation.drill_service import engine_section, wait_until

__all__ = ["PartitionSettings", "run", "run_hub"]

Seen = TypeVar("Seen")

OPERATOR = "drill"
HUB = "ray::Hub"
STARTED = "chairlift_requests_started_total"
POLL_S = 0.05
SETTLE_DEADLINE_S = 40.0


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """``parted_s`` is longer than it takes to ask all requests once.

    ``held``: of sequences a replica, set by hand before the Hub is lost.
    """

    requests: int = 90
    duration_s: float = 6.0
    blow_after_s: float = 3.0
    parted_s: float = 12.0
    longest_pause_s: float = 2.0
    output_tokens: int = 60
    nodes: int = 3
    held: int = 10
    step_ms: float | None = 60.0

    def config(self, routers: int) -> dict[str, object]:
        return {
            "engine": engine_section(64, "256MiB", self.step_ms),
            "workers": {"replicas": self.nodes},
            "router": {"replicas": routers},
            "operators": {OPERATOR: [hash_of(key_of(OPERATOR))]},
        }


def run(settings: PartitionSettings) -> Report:
    """A router and a worker, on a cluster of their own."""
    with Network() as network, DrillCluster(network) as cluster:
        cluster.add_nodes(settings.nodes)
        cluster.deploy(settings.config(routers=1))
        cluster.wait_until_running(settings.nodes)
        return in_loop(_drill(cluster, settings))


def run_hub(settings: PartitionSettings) -> Report:
    """A router and the Hub, on a cluster of their own."""
    with Network() as network, DrillCluster(network) as cluster:
        cluster.add_nodes(settings.nodes)
        cluster.deploy(settings.config(routers=2))
        cluster.wait_until_running(settings.nodes)
        return in_loop(_drill_hub(cluster, settings))


async def _drill(cluster: DrillCluster, settings: PartitionSettings) -> Report:
    report = Report("partition", asdict(settings))
    (router,) = cluster.routers()
    victim = next(host for host in cluster.workers() if host is not router)
    lost = len(victim.pids("ray::Worker"))
    before = cluster.serving()
    async with drill_client(url_of(router)) as client:
        calm = await undisturbed(
            client, settings.requests, settings.output_tokens, settings.duration_s
        )
        blow = asyncio.create_task(_part((router, victim), settings, client.health))
        answers = await ask_all(client, calm.questions, settings.duration_s)
        parted = [each.live for each in await blow].count(False)
        back = await _seconds_until(partial(_all_live, client, settings.nodes))
        again = await ask_all(client, calm.questions, settings.duration_s)
        moved = (await client.metrics()).by_label("chairlift_moves_total", "reason")
        paused, usual = pauses(answers), pauses(calm.answers)
        report.claims = [
            exactly("replicas behind the partition", parted, lost),
            at_least("choices that moved", sum(moved.values()), 1),
            at_most("longest pause less the usual one, s", max(paused), settings.longest_pause_s),
            at_most("until the replica was live again, s", back, settings.parted_s),
            exactly("routers and workers that were replaced", len(before - cluster.serving()), 0),
            *claims_of_sameness(calm.answers * 2, answers + again),
            *await claims_of_ends(client, settings.nodes),
        ]
    report.figures = {
        "choices that moved": moved,
        "longest pause less the usual one, undisturbed, s": max(usual),
    }
    return report


async def _drill_hub(cluster: DrillCluster, settings: PartitionSettings) -> Report:
    report = Report("partition-hub", asdict(settings))
    hub = await asyncio.to_thread(_hub, cluster)
    routers = cluster.routers()
    other = next(host for host in routers if host is not hub)
    async with drill_client(url_of(other)) as client, drill_client(url_of(hub)) as beside:
        calm = await undisturbed(
            client, settings.requests, settings.output_tokens, settings.duration_s
        )
        await _hold(beside, settings.held)
        watch = _Watch(client)
        look = partial(_figures_of, client, beside)
        blow = asyncio.create_task(_part((hub, other), settings, look))
        async with asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(watch.run())
            answers = await ask_all(client, calm.questions, settings.duration_s)
            watching.cancel()
        alone, there = await blow
        mended = await _seconds_until(partial(_all_counted, client, beside))
        report.claims = [
            exactly("nodes with a router", len(routers), 2),
            exactly("figures at the router that has lost the Hub", int(alone is not None), 0),
            exactly("routers in the figures beside the Hub", (there or {}).get("routers"), 1),
            at_most("sequences on a replica, at the most", watch.most, settings.held),
            *claims_of_sameness(calm.answers, answers),
            at_most("until all was in the figures again, s", mended, settings.parted_s),
            *await claims_of_ends(client, settings.nodes),
        ]
    report.figures = {
        "longest gap in a stream, undisturbed, s": calm.longest_gap,
        "longest gap in a stream, parted, s": Round(calm.questions, answers).longest_gap,
    }
    return report


def _hub(cluster: DrillCluster) -> Host:
    """Its node; a router makes it once there are workers."""
    wait_until(lambda: any(h.pids(HUB) for h in cluster.nodes), SETTLE_DEADLINE_S, "a Hub")
    return next(host for host in cluster.nodes if host.pids(HUB))


class _Watch:
    """The most sequences that a live replica ran, as one router sees it."""

    def __init__(self, client: DrillClient) -> None:
        self.most = 0
        self._client = client

    async def run(self) -> None:
        while True:
            running = [each.running or 0 for each in await self._client.health() if each.live]
            self.most = max(self.most, *running, 0)
            await asyncio.sleep(POLL_S)


async def _part(
    hosts: tuple[Host, Host], settings: PartitionSettings, look: Callable[[], Awaitable[Seen]]
) -> Seen:
    """Have two nodes lose each other for a while; returns what is seen at its end."""
    await asyncio.sleep(settings.blow_after_s)
    for host in hosts:
        host.isolate()
    await asyncio.sleep(settings.parted_s)
    seen = await look()
    for host in hosts:
        host.isolate(False)
    return seen


async def _hold(client: DrillClient, most: int) -> None:
    """Set by hand how many sequences a replica runs at most."""
    order = {"rung": "normal", "set": {"max_sequences": most}}
    headers = {"Authorization": f"Bearer {key_of(OPERATOR)}"}
    async with client.session.post(
        f"{client.url}/guard/set", json=order, headers=headers
    ) as response:
        if response.status != 200:
            raise RuntimeError(f"the Guard does not obey: {await response.text()}")


async def _figures(client: DrillClient) -> dict[str, Any] | None:
    """The cluster's; None where the router has none."""
    try:
        async with client.session.get(f"{client.url}/dashboard/figures") as response:
            return dict(await response.json()) if response.status == 200 else None
    except aiohttp.ClientError:
        return None


async def _figures_of(*clients: DrillClient) -> list[dict[str, Any] | None]:
    return [await _figures(each) for each in clients]


async def _all_live(client: DrillClient, number: int) -> bool:
    return sum(each.live for each in await client.health()) == number


async def _all_counted(*clients: DrillClient) -> bool:
    """Whether all have the same figures, in which is all that each of them has counted."""
    started = sum([(await each.metrics()).total(STARTED) for each in clients])
    known = await _figures_of(*clients)
    return all(
        each is not None
        and each["routers"] == len(clients)
        and each["totals"]["balanced"]
        and each["totals"]["started"] == started
        for each in known
    )


async def _seconds_until(condition: Callable[[], Awaitable[bool]]) -> float | None:
    """None if that does not come."""
    start = time.monotonic()
    while not await condition():
        if time.monotonic() - start > SETTLE_DEADLINE_S:
            return None
        await asyncio.sleep(POLL_S)
    return time.monotonic() - start
