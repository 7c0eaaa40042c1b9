"""The ways in which the incident drill breaks a service, and how each is taken back.

Owns the faults: each is a context that breaks something, yields the values of the variables that
its runbook names, and cleans up behind itself; mending is the runbook's. A fault that this machine
cannot have raises NotHere, which says why.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import psutil

from chairlift.evaluation.drill_load import Load, load_source
from chairlift.evaluation.drill_service import Service

__all__ = ["INCIDENTS", "Fault", "Incident", "NotHere", "Scene", "certificate", "key_of"]

OUTPUT = 50
PROMPT = "uniform:16,64"
LASTS_S = 600.0
"""Of a load, unless it is over before."""
MORE_REPLICAS = 2
FLOOD, BURST = 3.0, 1.5
"""Times the capacity."""


class NotHere(Exception):
    """This machine cannot be broken like that; the message says why."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A service that is to be broken.

    Attributes:
        config: its file.
        capacity: requests a second that it can serve, about.
        ledger: the folder of its ledgers, on a small disk of its own; None where none could be had.
    """

    service: Service
    config: Path
    capacity: float
    replicas: int
    routers: int
    ledger: Path | None = None


Values: TypeAlias = Mapping[str, str]
Fault: TypeAlias = Callable[[Scene], AbstractAsyncContextManager[Values]]


@dataclass(frozen=True, slots=True)
class Incident:
    """What breaks, and the title of its runbook; ``tls``: on a service that has certificates."""

    name: str
    runbook: str
    fault: Fault
    tls: bool = False


def key_of(tenant: str) -> str:
    """In the clear: they are good for nothing else."""
    return f"cl-drill-{tenant}"


def certificate(folder: Path, days: int) -> tuple[Path, Path]:
    """A certificate for this machine, and its key; raises NotHere without OpenSSL."""
    if shutil.which("openssl") is None:
        raise NotHere("openssl is not installed")
    files = folder / "server.crt", folder / "server.key"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc "
        "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    )
    names = ("-out", str(files[0]), "-keyout", str(files[1]), "-days", str(days))
    subprocess.run([*command.split(), *names], check=True, capture_output=True)
    return files


@asynccontextmanager
async def _worker_killed(scene: Scene) -> AsyncIterator[Values]:
    os.kill((await asyncio.to_thread(scene.service.worker_pids))[0], signal.SIGKILL)
    yield {"REPLICAS": str(scene.replicas)}


@asynccontextmanager
async def _worker_stopped(scene: Scene) -> AsyncIterator[Values]:
    victim = (await asyncio.to_thread(scene.service.worker_pids))[0]
    os.kill(victim, signal.SIGSTOP)
    try:
        yield {"REPLICAS": str(scene.replicas)}
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has been replaced
            os.kill(victim, signal.SIGCONT)


@asynccontextmanager
async def _router_killed(scene: Scene) -> AsyncIterator[Values]:
    pids = await asyncio.to_thread(scene.service.router_pids)
    os.kill(pids[-1], signal.SIGKILL)
    yield {"ROUTERS": str(scene.routers)}


@asynccontextmanager
async def _hub_killed(scene: Scene) -> AsyncIterator[Values]:
    os.kill(await asyncio.to_thread(_hub_pid, scene.service), signal.SIGKILL)
    yield {}


def _hub_pid(service: Service) -> int:
    for process in service.descendants():
        with contextlib.suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith("ray::Hub"):
                return process.pid
    raise LookupError("no process is the Hub")


@asynccontextmanager
async def _burst(scene: Scene) -> AsyncIterator[Values]:
    async with _load(scene, "anonymous", BURST):
        yield {"REPLICAS": str(scene.replicas + MORE_REPLICAS)}


@asynccontextmanager
async def _flood(scene: Scene) -> AsyncIterator[Values]:
    async with _load(scene, "heavy", FLOOD):
        yield {"TENANT": "heavy"}


@asynccontextmanager
async def _bad_configuration(scene: Scene) -> AsyncIterator[Values]:
    good = scene.config.with_suffix(".good")
    shutil.copy(scene.config, good)
    scene.config.write_text(scene.config.read_text() + "engin: {max_sequences: 4}\n")
    scene.service.process.send_signal(signal.SIGHUP)
    yield {"GOOD": str(good)}


@asynccontextmanager
async def _expired_key(scene: Scene) -> AsyncIterator[Values]:
    yield {"TENANT": "lapsed", "KEY": key_of("lapsed")}


@asynccontextmanager
async def _full_disk(scene: Scene) -> AsyncIterator[Values]:
    if scene.ledger is None:
        raise NotHere("a small disk cannot be mounted; it takes the right to mount a tmpfs")
    filler = scene.ledger / "other.filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    try:
        async with _load(scene, "anonymous", 0.3):
            yield {
                "LEDGER": str(scene.ledger),
                "RAY": str(await asyncio.to_thread(scene.service.ray_folder)),
            }
    finally:
        filler.unlink(missing_ok=True)


@asynccontextmanager
async def _certificate_expires(scene: Scene) -> AsyncIterator[Values]:
    folder = scene.config.parent
    yield {"CERTIFICATE": str(folder / "server.crt"), "PRIVATE": str(folder / "server.key")}


@asynccontextmanager
async def _load(scene: Scene, tenant: str, factor: float) -> AsyncIterator[None]:
    """So many times what can be served, until the end of the context."""
    headers = {} if tenant == "anonymous" else {"Authorization": f"Bearer {key_of(tenant)}"}
    load = Load(PROMPT, f"constant:{OUTPUT}")
    async with load_source(scene.service.url, load, headers=headers) as source:
        task = asyncio.create_task(source.open((factor * scene.capacity, LASTS_S)))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])


INCIDENTS = (
    Incident("a worker is killed", "ChairliftReplicaDown", _worker_killed),
    Incident("a worker is stopped", "A worker hangs", _worker_stopped),
    Incident("a router is killed", "A router dies", _router_killed),
    Incident("the Hub is killed", "ChairliftHubMissing", _hub_killed),
    Incident("a wrong configuration", "A configuration that is wrong", _bad_configuration),
    Incident("a key is over", "A key has expired", _expired_key),
    Incident("the ledger's disk is full", "The disk of the ledger is full", _full_disk),
    Incident("a tenant floods", "A tenant floods", _flood),
    Incident("a burst", "ChairliftSignalOfferedLoad", _burst),
    Incident("a certificate expires", "ChairliftCertificateEnds", _certificate_expires, tls=True),
)
