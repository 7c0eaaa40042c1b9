"""A ``chairlift serve`` of its own, started and stopped as a user does, and the processes in it.

Owns its life and the finding of its processes, which are told apart by the names that they give
themselves: only a service that was started here is ever looked into. It knows nothing of loads.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from chairlift.evaluation.metrics_page import MetricsPage

__all__ = [
    "STOP_DEADLINE_S",
    "Service",
    "engine_section",
    "free_port",
    "running_service",
    "wait_until",
]

START_DEADLINE_S = 180.0
STOP_DEADLINE_S = 60.0
PORTS = (15_000, 30_000)
"""Below those that systems give to outgoing connections."""
GRPC_ABOVE = 1000
"""Between the two ports of a service, by default."""


def wait_until(condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Poll until ``condition`` holds; TimeoutError naming ``what`` after the deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= end:
            raise TimeoutError(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(0.05)


def free_port() -> int:
    """A port that nothing listens on, nor on the one of gRPC beside it.

    No outgoing connection will be given either meanwhile.
    """
    while True:
        port = random.randrange(*PORTS)
        with socket.socket() as http, socket.socket() as grpc, contextlib.suppress(OSError):
            http.bind(("127.0.0.1", port))
            grpc.bind(("127.0.0.1", port + GRPC_ABOVE))
            return port


@dataclass(frozen=True)
class Service:
    """Handle on the process group of one ``chairlift serve``."""

    process: subprocess.Popen[bytes]
    port: int
    output: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def grpc_address(self) -> str:
        """Where gRPC listens by default."""
        return f"127.0.0.1:{self.port + GRPC_ABOVE}"

    def live_replicas(self) -> int:
        """Replicas that /health calls live; 0 while it does not answer 200."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2.0) as answer:  # nosec B310
                return sum(replica["live"] for replica in json.load(answer)["replicas"])
        except OSError:
            return 0

    def total(self, name: str) -> float:
        """The sum of a metric's samples over all labels; LookupError when there are none."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5.0) as answer:  # nosec B310
            return MetricsPage(answer.read().decode()).total(name)

    def descendants(self) -> list[psutil.Process]:
        """Every process that was started from ``serve`` and lives."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def worker_pids(self) -> list[int]:
        """Process ids of the Worker actors of rank 0, the oldest first."""
        return self._pids(lambda name: name.startswith("ray::Worker") and "WorkerGroup" not in name)

    def follower_pids(self) -> list[int]:
        """Process ids of the Worker actors of other ranks, the oldest first."""
        return self._pids(lambda name: name.startswith("ray::FollowingWorker"))

    def router_pids(self) -> list[int]:
        """Process ids of the Router deployment's replicas, the oldest first."""
        return self._pids(lambda name: name.startswith("ray::ServeReplica") and "Router" in name)

    def ray_folder(self) -> Path:
        """The folder that the service made for Ray's sockets and logs."""
        for process in self.descendants():
            for argument in process.cmdline():
                if argument.startswith("--session-dir="):
                    return Path(argument.split("=", 1)[1]).parent
        raise LookupError("no process of Ray names its folder")

    def signal(self, number: signal.Signals) -> int:
        """Stop it; returns the exit code.

        SIGINT goes to the whole foreground group, as Ctrl-C in a terminal; others to it alone.
        """
        if number is signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        return self.process.wait(STOP_DEADLINE_S)

    def _pids(self, is_wanted: Callable[[str], bool]) -> list[int]:
        """Of processes with such a command line."""
        found = []
        for process in self.descendants():
            with contextlib.suppress(psutil.Error):
                if is_wanted(" ".join(process.cmdline())):
                    found.append((process.create_time(), process.pid))
        return [pid for _, pid in sorted(found)]


def engine_section(seats: int, kv_memory: str, step_ms: float | None) -> dict[str, object]:
    """Of a configuration; ``step_ms`` is None for the real model."""
    engine: dict[str, object] = {"max_sequences": seats, "kv_memory": kv_memory}
    return engine if step_ms is None else engine | {"simulated_step_ms": step_ms}


@contextlib.contextmanager
def running_service(*flags: str, config: Mapping[str, object] | None = None) -> Iterator[Service]:
    """``chairlift serve``, ready; killed at the end if it still runs.

    Args:
        flags: of the command line.
        config: what to write into its configuration file.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="cl") as folder:
        file, output = Path(folder, "config.yaml"), Path(folder, "output")
        file.write_text(yaml.safe_dump(dict(config or {})))
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "chairlift.deployments.cli", "serve"),
                    *("--config", str(file), "--port", str(port), *flags),
                ],
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
            )
        service = Service(process, port, output)
        descendants: list[psutil.Process] = []
        try:
            _wait_until_ready(service)
            descendants = service.descendants()
            yield service
        finally:
            _stop(service, descendants)


def _wait_until_ready(service: Service) -> None:
    """Raises RuntimeError with what it printed when it ends instead."""
    process = service.process
    wait_until(
        lambda: process.poll() is not None or b"Chairlift serves" in service.output.read_bytes(),
        START_DEADLINE_S,
        "chairlift serve ready",
    )
    if process.poll() is not None:
        raise RuntimeError(f"chairlift serve ended: {service.output.read_text()}")


def _stop(service: Service, descendants: list[psutil.Process]) -> None:
    """By a signal first; whatever of it lives then is killed."""
    process = service.process
    if process.poll() is None:
        descendants = [*descendants, *service.descendants()]
        for each in descendants:  # a stopped process cannot say goodbye
            with contextlib.suppress(psutil.Error):
                each.resume()
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_DEADLINE_S)
    for each in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    if process.poll() is None:
        process.kill()
    process.wait()
