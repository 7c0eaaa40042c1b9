"""A Ray cluster on several hosts of a drill, and Chairlift on it, as people start them.

Owns the start of its parts by their own command lines, ``ray start`` and ``chairlift env``, and the
talk with Ray's REST interface, to which ``serve deploy`` talks as well. It knows no drill.
"""

from __future__ import annotations

import json
import secrets
import shutil
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from chairlift.cluster.ray_flags import CLUSTER_FLAGS
from chairlift.evaluation.drill_network import Host, Network
from chairlift.evaluation.drill_service import wait_until

__all__ = ["HTTP_PORT", "DrillCluster", "live_replicas", "url_of"]

HTTP_PORT, RAY_PORT, DASHBOARD_PORT, REDIS_PORT = 8000, 6379, 8265, 6390
APPLICATIONS = "/api/serve/applications/"
BUILDER = "chairlift.deployments.app:build"
NODE_DEADLINE_S, READY_DEADLINE_S = 120.0, 240.0
OBJECT_STORE = 80 * 1024**2
ROUTER = "ray::ServeReplica:chairlift:Router"


@dataclass(eq=False)
class DrillCluster:
    """A context manager: inside it the head runs; nodes and the service are asked for.

    Attributes:
        redis: whether the cluster's state outlives its head.
        nodes: all hosts but the head's, also those that are dead.
    """

    network: Network
    redis: bool = False
    head: Host = field(init=False)
    nodes: list[Host] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="cl"))
        self._token = self.folder / "token"
        self._token.write_text(secrets.token_hex(32))
        self._ray_token = secrets.token_hex(32)
        self._redis_host: Host | None = None

    def __enter__(self) -> Self:
        if self.redis:
            self._redis_host = self.network.host("redis")
            self._redis_host.start(
                *("redis-server", "--bind", self._redis_host.address),
                *("--port", str(REDIS_PORT), "--protected-mode", "no", "--save", ""),
                output=self.folder / "redis",
            )
        self.head = self.network.host("head")
        self.start_head()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for host in (*self.nodes, self.head, self._redis_host):
            if host is not None:
                host.kill()
        if error is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f"logs: {self.folder}", file=sys.stderr)

    def start_head(self) -> None:
        """Also once more, after it was killed. It has no room for routers and workers."""
        self.head.mend()
        self._ray_start(
            self.head,
            *("--head", "--port", str(RAY_PORT), "--num-cpus", "0"),
            *("--dashboard-host", self.head.address, "--dashboard-port", str(DASHBOARD_PORT)),
            *("--temp-dir", str(self.folder / "ray")),
        )
        wait_until(
            lambda: self._ask("GET", APPLICATIONS) is not None,
            NODE_DEADLINE_S,
            "Ray's REST interface answers",
        )

    def add_nodes(self, number: int) -> None:
        """Start so many, one after the other, for in one folder they name their sockets."""
        for _ in range(number):
            host = self.network.host(f"node {len(self.nodes) + 1}")
            self._ray_start(host, "--address", f"{self.head.address}:{RAY_PORT}", "--num-cpus", "1")
            self.nodes.append(host)
            self._wait_for(host)

    def deploy(self, config: Mapping[str, Any], **numbers: int) -> None:
        """Start the service, or change it.

        Args:
            config: as ``chairlift serve --config`` takes it.
            numbers: of replicas by deployment, over those of the configuration.
        """
        everywhere = "0.0.0.0"  # nosec B104  # of a network that nobody else is on
        tree = {**config, "http": {"host": everywhere, "port": HTTP_PORT}}
        tree["workers"] = {**tree.get("workers", {}), "token_file": str(self._token)}
        sizes = [{"name": name, "num_replicas": number} for name, number in numbers.items()]
        application = {
            "name": "chairlift",
            "import_path": BUILDER,
            "args": tree,
            **({"deployments": sizes} if sizes else {}),
        }
        answer = self._ask(
            "PUT", APPLICATIONS, {"proxy_location": "Disabled", "applications": [application]}
        )
        if answer is None:
            raise RuntimeError("Ray does not take the application")

    def wait_until_running(self, workers: int) -> None:
        """Until Serve says so, and every router has so many live replicas.

        Raises RuntimeError with what Serve says when the application does not start.
        """

        def running() -> bool:
            status = self.status()
            if status["status"] == "DEPLOY_FAILED":
                raise RuntimeError(status["message"])
            routers = self.routers()
            return (
                status["status"] == "RUNNING"
                and bool(routers)
                and all(live_replicas(host) == workers for host in routers)
            )

        wait_until(running, READY_DEADLINE_S, "the service runs")

    def status(self) -> dict[str, Any]:
        """Of the application, as Serve has it."""
        known = self._ask("GET", APPLICATIONS) or {}
        unknown = {"status": "UNKNOWN", "message": ""}
        found: dict[str, Any] = known.get("applications", {}).get("chairlift", unknown)
        return found

    def routers(self) -> list[Host]:
        """Nodes with a router."""
        return [host for host in self.nodes if host.pids(ROUTER)]

    def workers(self) -> list[Host]:
        """Nodes with rank 0 of a replica."""
        return [host for host in self.nodes if host.pids("ray::Worker")]

    def serving(self) -> set[int]:
        """Process ids of all routers and workers."""
        names = ("ray::Worker", "ray::ServeReplica")
        return {pid for host in self.nodes for name in names for pid in host.pids(name)}

    def _ray_start(self, host: Host, *words: str) -> None:
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self._ray_token}
        flags = dict(CLUSTER_FLAGS) | auth
        if self._redis_host is not None:
            flags["RAY_REDIS_ADDRESS"] = f"{self._redis_host.address}:{REDIS_PORT}"
        host.start(
            *("env", *(f"{name}={value}" for name, value in flags.items())),
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block"),
            *("--node-ip-address", host.address, "--object-store-memory", str(OBJECT_STORE)),
            *words,
            output=self.folder / host.name.replace(" ", ""),
        )

    def _wait_for(self, host: Host) -> None:
        wait_until(
            lambda: host.address in self._ray_nodes(), NODE_DEADLINE_S, f"{host.name} is there"
        )

    def _ray_nodes(self) -> set[str]:
        """Addresses of those that Ray has."""
        known = self._ask("GET", "/api/v0/nodes") or {}
        listed = known.get("data", {}).get("result", {}).get("result", [])
        return {node["node_ip"] for node in listed if node["state"] == "ALIVE"}

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any] | None:
        """Ray's answer; None while it has none. Raises RuntimeError with what it refuses."""
        request = urllib.request.Request(
            f"http://{self.head.address}:{DASHBOARD_PORT}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self._ray_token}",
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=30.0) as answer:  # nosec B310
                return dict(json.loads(answer.read() or b"{}"))
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{error.code}: {error.read().decode()[:500]}") from None
        except OSError:
            return None


def url_of(host: Host) -> str:
    """Of the router there."""
    return f"http://{host.address}:{HTTP_PORT}"


def live_replicas(host: Host) -> int:
    """That the router there calls live; 0 while it does not answer."""
    try:
        with urllib.request.urlopen(f"{url_of(host)}/health", timeout=2.0) as answer:  # nosec B310
            return sum(replica["live"] for replica in json.load(answer)["replicas"])
    except OSError:
        return 0
