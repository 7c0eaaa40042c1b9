"""Runs what the manifests and the Dockerfile name, on this machine, and says what came of it.

    python -m support.cluster_of_pods {pods,image} FOLDER

``pods``: those of the overlay for CPUs, each with its own network and root: the head, one router
and one worker, for this is one machine; all else is as rendered. ``image``: its entry point, alone.
What came of it is printed as JSON; logs are in the folder. It is a process of its own, for it moves
into another network.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import openai

from chairlift.evaluation.drill_network import Host, Network
from chairlift.evaluation.drill_service import wait_until
from checks.cluster_facts import MANIFESTS
from checks.cluster_stack import Pods, Stack
from checks.dockerfile import Image, read_image
from checks.kustomize import render
from support import kuberay
from support.containers import Container, Volume

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
START_S, SERVE_S = 180.0, 500.0
GATEWAY = "10.77.0.1"
SIMULATED = {"CHAIRLIFT__ENGINE__SIMULATED_STEP_MS": "5"}


class RunningPod:
    """One pod, on a host of its own."""

    def __init__(self, pods: Pods, host: Host, container: Container) -> None:
        self.host, self.container, self._pods = host, container, pods

    def probe(self, name: str) -> bool:
        """As the kubelet does it."""
        asked = self._pods.main[name]["httpGet"]
        port = self._pods.ports().get(asked["port"], asked["port"])
        return answers(f"http://{self.host.address}:{port}{asked['path']}")

    def wait(self, name: str, seconds: float) -> None:
        def ready() -> bool:
            if self.container.ended:
                raise RuntimeError(f"{self._pods.where} has ended")
            return self.probe(name)

        wait_until(ready, seconds, f"{name} of {self._pods.where}")


class PodCluster:
    """The pods of one stack, and Ray's REST interface, which KubeRay talks to."""

    def __init__(self, stack: Stack, network: Network, folder: Path) -> None:
        self._stack, self._network, self._folder = stack, network, folder
        self._image: Image = read_image(ROOT)
        self._token = secrets.token_hex(32)
        self._secrets = {"chairlift-cluster": {"token": secrets.token_hex(32)}}
        self._head = ""

    def start(self, component: str) -> RunningPod:
        (pods,) = [each for each in self._stack.ray_pods() if each.component == component]
        host = host_of(self._network, component, self._folder)
        self._head = self._head or host.address
        container = Container(
            host,
            kuberay.argv(pods, self._stack, self._head),
            kuberay.environment(pods, self._image.environment, self._head, self._token),
            kuberay.volumes(pods, self._secrets),
            user=self._image.uid,
            output=self._folder / component,
        )
        return RunningPod(pods, host, container)

    def can_reach_the_head(self, pod: RunningPod) -> bool:
        """What its init container waits for."""
        done = pod.container.run(*kuberay.wait_for_head(self._head))
        return done.returncode == 0

    def deploy(self, token: str | None = None) -> int:
        """As KubeRay does it, with as few replicas as there are pods; the answer's status."""
        tree = self._stack.serve_config
        args = tree["applications"][0]["args"]
        args["router"]["replicas"] = args["workers"]["replicas"] = 1
        return self._ask("PUT", self._token if token is None else token, tree)[0]

    def runs(self) -> bool:
        """Whether Serve says so. Raises RuntimeError with what it says when it does not start."""
        _, answer = self._ask("GET", self._token)
        application = answer.get("applications", {}).get("chairlift", {})
        if application.get("status") == "DEPLOY_FAILED":
            raise RuntimeError(application["message"])
        return bool(application.get("status") == "RUNNING")

    def _ask(self, method: str, token: str, tree: object = None) -> tuple[int, Any]:
        request = urllib.request.Request(
            f"http://{self._head}:8265/api/serve/applications/",
            method=method,
            data=None if tree is None else json.dumps(tree).encode(),
            headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60.0) as answer:
                return answer.status, json.loads(answer.read() or b"{}")
        except urllib.error.HTTPError as error:
            return error.code, {}


def host_of(network: Network, name: str, folder: Path) -> Host:
    """With a way out, as a pod has; Ray finds its own address by it."""
    host = network.host(name)
    route = ("ip", "route", "add", "default", "via", GATEWAY)
    host.start(*route, output=folder / "route").wait()
    return host


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            return bool(answer.status < 400)
    except OSError:
        return False


def pods(folder: Path) -> dict[str, object]:
    """From nothing to tokens."""
    stack = Stack("cpu", render(ROOT / MANIFESTS / "overlays" / "cpu"))
    with Network() as network:
        cluster = PodCluster(stack, network, folder)
        head = cluster.start("head")
        head.wait("startupProbe", START_S)
        router, worker = cluster.start("router"), cluster.start("worker")
        for pod in (router, worker):
            pod.wait("startupProbe", START_S)
        told: dict[str, object] = {
            "reached the head": [cluster.can_reach_the_head(pod) for pod in (router, worker)],
            "ready before": [pod.probe("readinessProbe") for pod in (head, router, worker)],
            "deployed with another token": cluster.deploy("0" * 64),
            "deployed": cluster.deploy(),
        }
        wait_until(cluster.runs, SERVE_S, "the service runs")
        router.wait("readinessProbe", START_S)
        told["ready"] = [pod.probe("readinessProbe") for pod in (head, router, worker)]
        told["alive"] = [pod.probe("livenessProbe") for pod in (head, router, worker)]
        told["routers"] = [_count(pod, "ray::ServeReplica:chairlift:Router") for pod in
                           (head, router, worker)]  # fmt: skip
        told["workers"] = [_count(pod, "ray::Worker") for pod in (head, router, worker)]
        told |= _confinement(worker)
        with socket.create_connection((router.host.address, 9000), timeout=5.0):
            told["grpc listens"] = True
        client = openai.OpenAI(base_url=f"http://{router.host.address}:8000/v1", api_key="-")
        answer = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            max_tokens=16,
            temperature=0,
        )
        told["answer"] = answer.choices[0].message.content
    return told


def _count(pod: RunningPod, name: str) -> int:
    return len(pod.host.pids(name))


def _confinement(pod: RunningPod) -> dict[str, object]:
    """What its processes may do."""
    status = pod.container.run("cat", "/proc/self/status").stdout
    lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return {
        "user": lines["Uid"].split(),
        "capabilities": int(lines["CapEff"], 16) | int(lines["CapBnd"], 16),
        "may gain privileges": lines["NoNewPrivs"] != "1",
        "may write": [
            path
            for path in ("/x", "/opt/chairlift/x", "/etc/x", "/etc/chairlift/cluster/x", "/cache/x")
            if pod.container.run("touch", path).returncode == 0
        ],
    }


def image(folder: Path) -> dict[str, object]:
    """What it does without being told anything; the model is simulated, for it is not the point."""
    made = read_image(ROOT)
    with Network() as network:
        host = host_of(network, "image", folder)
        container = Container(
            host,
            [*made.entrypoint, *made.command],
            {**made.environment, **SIMULATED},
            [Volume(path) for path in ("/tmp", "/dev/shm", *made.folders)],
            user=made.uid,
            output=folder / "image",
        )
        wait_until(lambda: _ready(container, host), SERVE_S, "the image serves")
        return {"healthy": container.run(*made.health).returncode == 0}


def _ready(container: Container, host: Host) -> bool:
    if container.ended:
        raise RuntimeError("the image has ended")
    return answers(f"http://{host.address}:8000/health")


SCENES: dict[str, Callable[[Path], dict[str, object]]] = {"pods": pods, "image": image}


def main(arguments: Sequence[str]) -> int:
    scene, folder = arguments
    print(json.dumps(SCENES[scene](Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
