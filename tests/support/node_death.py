"""``python -m support.node_death``: a node of three dies under load, in one process group.

In a process of its own, since Ray's flags must stand in the environment before it is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import psutil

from chairlift.cluster.config import set_environment
from chairlift.cluster.ray_flags import CLUSTER_FLAGS
from chairlift.evaluation.drill_client import DrillClient, drill_client, in_loop
from chairlift.evaluation.drill_questions import compare
from chairlift.evaluation.drill_rounds import ask_all, pauses, undisturbed
from chairlift.evaluation.drill_service import engine_section, free_port

NODES, REQUESTS, TOKENS, LOAD_S, BLOW_S = 2, 24, 30, 1.5, 0.8
START_DEADLINE_S = 120.0


def main() -> None:
    """Prints what was found as JSON."""
    set_environment(CLUSTER_FLAGS | {"RAY_AUTH_MODE": "disabled"})
    set_environment({"CHAIRLIFT_CLUSTER_TOKEN": "0123456789abcdef" * 4})
    port = free_port()
    with running_cluster() as cluster:
        deploy(port)
        print(json.dumps(in_loop(drill(cluster, f"http://127.0.0.1:{port}"))))


@contextlib.contextmanager
def running_cluster() -> Iterator[Any]:
    """A head without room for anything, and the nodes."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        for _ in range(NODES):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, namespace="chairlift", log_to_driver=False)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def deploy(port: int) -> None:
    from ray import serve

    from chairlift.deployments.app import build

    serve.start(proxy_location="Disabled")
    config = {
        "engine": engine_section(64, "64MiB", 30.0),
        "http": {"port": port},
        "grpc": {"enabled": False},
        "workers": {"replicas": NODES},
    }
    serve.run_many(
        [serve.RunTarget(build(config), name="chairlift", route_prefix=None)],
        wait_for_applications_running=False,
    )


async def drill(cluster: Any, url: str) -> dict[str, Any]:
    async with drill_client(url) as client:
        await until_live(client, NODES)
        calm = await undisturbed(client, REQUESTS, TOKENS, LOAD_S)
        victim = node_without_router(cluster)
        blow = asyncio.create_task(remove(cluster, victim))
        answers = await ask_all(client, calm.questions, LOAD_S)
        await blow
        differences = compare(calm.answers, answers)
        moved = (await client.metrics()).total("chairlift_moves_total")
    return {
        "lost": differences.lost,
        "tokens": differences.tokens,
        "texts": differences.texts,
        "moved": moved,
        "pause": max(pauses(answers)),
    }


async def until_live(client: DrillClient, number: int) -> None:
    async with asyncio.timeout(START_DEADLINE_S):
        while sum(each.live for each in await client.health()) < number:
            await asyncio.sleep(0.05)


def node_without_router(cluster: Any) -> Any:
    def names(node: Any) -> list[str]:
        raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
        return [" ".join(child.cmdline()) for child in raylet.children(recursive=True)]

    for node in cluster.worker_nodes:
        if not any("chairlift:Router" in name for name in names(node)):
            assert any(name.startswith("ray::Worker") for name in names(node)), names(node)
            return node
    raise LookupError("each node has a router")


async def remove(cluster: Any, node: Any) -> None:
    await asyncio.sleep(BLOW_S)
    await asyncio.to_thread(cluster.remove_node, node, allow_graceful=False)


if __name__ == "__main__":
    main()
