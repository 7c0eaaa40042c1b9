"""A running ``chairlift serve``, started and stopped as a user does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

START_DEADLINE_S = 180.0
STOP_DEADLINE_S = 60.0


def wait_until(condition: Callable[[], bool], deadline_s: float, what: str) -> None:
    """Poll until ``condition`` holds; AssertionError naming ``what`` after the deadline."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(0.05)


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Service:
    """Handle on the process group of one ``chairlift serve``."""

    process: subprocess.Popen[bytes]
    port: int
    output: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def live_replicas(self) -> int:
        """Replicas that /health calls live; 0 while it does not answer 200."""
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2.0) as answer:
                return sum(replica["live"] for replica in json.load(answer)["replicas"])
        except OSError:
            return 0

    def total(self, name: str) -> float:
        """The sum of a metric's samples over all labels; AssertionError when there are none."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5.0) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (
            line.rsplit(" ", 1) for line in lines if line.startswith((f"{name}{{", f"{name} "))
        )
        values = [float(value) for _, value in pairs]
        assert values, f"/metrics has no {name}"
        return sum(values)

    def descendants(self) -> list[psutil.Process]:
        """Every process that was started from ``serve`` and lives."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def worker_pids(self) -> list[int]:
        """Process ids of the Worker actors."""
        pids = []
        for process in self.descendants():
            with contextlib.suppress(psutil.Error):
                if any(part.startswith("ray::Worker") for part in process.cmdline()) and not any(
                    "WorkerGroup" in part for part in process.cmdline()
                ):
                    pids.append(process.pid)
        return pids

    def ray_folder(self) -> Path:
        """The folder that the service made for Ray's sockets and logs."""
        for process in self.descendants():
            for argument in process.cmdline():
                if argument.startswith("--session-dir="):
                    return Path(argument.split("=", 1)[1]).parent
        raise AssertionError("no process of Ray names its folder")

    def signal(self, number: signal.Signals) -> int:
        """Stop it; returns the exit code.

        SIGINT goes to the whole foreground group, as Ctrl-C in a terminal; others to it alone.
        """
        if number is signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        return self.process.wait(STOP_DEADLINE_S)


@contextlib.contextmanager
def running_service(*flags: str) -> Iterator[Service]:
    """``chairlift serve`` with these flags, ready; killed at the end if it still runs."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="cl") as folder:
        output = Path(folder, "output")
        with output.open("wb") as sink:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "chairlift.deployments.cli", "serve"),
                    *("--port", str(port), *flags),
                ],
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=folder,
            )
        service = Service(process, port, output)
        descendants: list[psutil.Process] = []
        try:
            wait_until(
                lambda: process.poll() is not None or b"Chairlift serves" in output.read_bytes(),
                START_DEADLINE_S,
                "chairlift serve ready",
            )
            assert process.poll() is None, output.read_text()
            descendants = service.descendants()
            yield service
        finally:
            if process.poll() is None:
                descendants += service.descendants()
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(STOP_DEADLINE_S)
                for each in (process, *descendants):
                    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                        each.kill()
                process.wait()
