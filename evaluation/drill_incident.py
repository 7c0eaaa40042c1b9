"""A service is broken in every way that has a runbook, and mended by what the runbook says.

Each fault is left to itself until the commands of the runbook's First look show it; then those of
its Action are run, and nothing else. Both are read from the page on operations, so the page cannot
say what does not work. All the while somebody asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chairlift.cluster.keys import hash_key
from chairlift.evaluation.drill_client import DrillClient, Question, drill_client, in_loop
from chairlift.evaluation.drill_ends import claims_of_ends, seconds_until_idle
from chairlift.evaluation.drill_guard import guard_file
from chairlift.evaluation.drill_incident_faults import (
    INCIDENTS,
    OUTPUT,
    Incident,
    NotHere,
    Scene,
    certificate,
    key_of,
)
from chairlift.evaluation.drill_report import Report, exactly
from chairlift.evaluation.drill_service import engine_section, running_service, wait_until
from chairlift.evaluation.runbook_shell import RunbookShell
from chairlift.evaluation.runbooks import Command, Runbook, read_runbooks

__all__ = ["IncidentSettings", "run"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operations.md"
STEPS = 4
"""Well before, seen, mended, answering."""
ASK_EVERY_S = 0.25
DISK = "4m"
APPLIED = b"configuration applied"
WELL = Command("curl -sk $URL/metrics/cluster", r"cluster_routers $ROUTERS\.0")
ANSWERED = Command(
    "curl -sk $URL/v1/completions -H 'Content-Type: application/json' "
    '-d \'{"model": "drill", "prompt": "a", "max_tokens": 4}\'',
    '"finish_reason":"length"',
)


@dataclass(frozen=True, slots=True)
class IncidentSettings:
    """``only``: names of incidents, if not all; the Guard leaves a rung after ``leave_for_s``."""

    only: tuple[str, ...] = ()
    page: str = str(PAGE)
    seen_s: float = 60.0
    mended_s: float = 120.0
    leave_for_s: float = 3.0
    seats: int = 8
    replicas: int = 2
    routers: int = 2
    step_ms: float = 40.0

    @property
    def incidents(self) -> list[Incident]:
        return [each for each in INCIDENTS if not self.only or each.name in self.only]

    @property
    def capacity(self) -> float:
        """Requests a second."""
        return self.seats * self.replicas / (OUTPUT * self.step_ms / 1e3)

    def config(self, policy: str, ledger: Path | None) -> dict[str, object]:
        """Of the service that all but certificates is broken on."""
        return {
            "model": {"name": "drill"},
            "engine": engine_section(self.seats, "128MiB", self.step_ms),
            "workers": {"replicas": self.replicas},
            "router": {"replicas": self.routers},
            "guard": {"file": policy},
            "tenants": {
                "anonymous": {"weight": 1.0},
                "heavy": {"keys": [hash_key(key_of("heavy"))]},
                "lapsed": {"keys": [{"hash": hash_key(key_of("lapsed")), "expires": "2020-01-01"}]},
            },
            "ledger": {"always": True, "disk": "2MiB"}
            | ({} if ledger is None else {"folder": str(ledger)}),
        }


@dataclass(slots=True)
class _Asked:
    """What somebody got who asked all the while; ``failed``: how often for which reason."""

    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)


def run(settings: IncidentSettings) -> Report:
    """On services of its own: one in the clear, one with certificates."""
    report = Report("incident", asdict(settings))
    runbooks = read_runbooks(Path(settings.page).read_text(encoding="utf-8"))
    plain = [each for each in settings.incidents if not each.tls]
    with _guard_folder(settings) as (policy, ledger):
        if plain:
            with running_service(config=settings.config(policy, ledger)) as service:
                config = service.output.with_name("config.yaml")
                scene = Scene(
                    service, config, settings.capacity, settings.replicas, settings.routers, ledger
                )
                in_loop(_break_all(scene, settings, plain, runbooks, report))
    for incident in settings.incidents:
        if incident.tls:
            _with_certificates(settings, incident, runbooks, report)
    return report


async def _break_all(
    scene: Scene,
    settings: IncidentSettings,
    incidents: Sequence[Incident],
    runbooks: dict[str, Runbook],
    report: Report,
) -> None:
    """One after the other, each on a service that is well and has its first configuration."""
    first = scene.config.read_text()
    async with drill_client(scene.service.url) as client:
        for incident in incidents:
            async with _somebody_asks(client) as asked:
                await _break(scene, settings, incident, runbooks, report)
            report.figures[f"{incident.name}: asked meanwhile"] = {
                "answered": asked.answered,
                "failed": dict(asked.failed),
            }
            if scene.config.read_text() != first:
                scene.config.write_text(first)
                await asyncio.to_thread(_reload, scene)
            await seconds_until_idle(client, settings.mended_s, settings.replicas)
        report.claims += await claims_of_ends(client, settings.replicas)


async def _break(
    scene: Scene,
    settings: IncidentSettings,
    incident: Incident,
    runbooks: dict[str, Runbook],
    report: Report,
) -> None:
    """Break it, look, mend it, and add what came of that to the report."""
    runbook, service = runbooks[incident.runbook], scene.service
    scheme = "https" if incident.tls else "http"
    shell = RunbookShell(
        scene.config.parent,
        {
            "URL": f"{scheme}://127.0.0.1:{service.port}",
            "CONFIG": str(scene.config),
            "SERVE": str(service.process.pid),
            "LOG": str(service.output),
        },
    )
    steps = [await shell.follow((WELL,), settings.mended_s, {"ROUTERS": str(scene.routers)})]
    try:
        if steps[0].ok:
            async with incident.fault(scene) as values:
                for commands, deadline_s in (
                    (runbook.commands("First look"), settings.seen_s),
                    (runbook.commands("Action"), settings.mended_s),
                    ((ANSWERED,), settings.seen_s),
                ):
                    steps.append(await shell.follow(commands, deadline_s, values))
    except NotHere as error:
        report.figures[f"{incident.name}: not tried"] = str(error)
        return
    claim = f"{incident.name}: steps that held, of well before, seen, mended and answering"
    report.claims.append(exactly(claim, sum(step.ok for step in steps), STEPS))
    for step, name in zip(steps[1:], ("seen", "mended"), strict=False):
        report.figures[f"{incident.name}: seconds until {name}"] = step.seconds
    wrong = [step.last_words for step in steps if not step.ok]
    if wrong:
        report.figures[f"{incident.name}: went wrong"] = wrong


def _with_certificates(
    settings: IncidentSettings,
    incident: Incident,
    runbooks: dict[str, Runbook],
    report: Report,
) -> None:
    """On a service whose certificate has a day to go."""
    with tempfile.TemporaryDirectory(prefix="ct") as folder:
        try:
            crt, key = certificate(Path(folder), days=1)
        except NotHere as error:
            report.figures[f"{incident.name}: not tried"] = str(error)
            return
        config = {
            "model": {"name": "drill"},
            "engine": engine_section(settings.seats, "128MiB", settings.step_ms),
            "http": {"tls": {"certificate": str(crt), "key": str(key)}},
        }
        with running_service(config=config) as service:
            scene = Scene(service, Path(folder, "config.yaml"), settings.capacity, 1, 1)
            in_loop(_break(scene, settings, incident, runbooks, report))


@asynccontextmanager
async def _somebody_asks(client: DrillClient) -> AsyncIterator[_Asked]:
    """One short request after the other, each over a connection of its own."""
    asked = _Asked()

    async def ask_on() -> None:
        body = {"model": "drill", "prompt": [1, 2, 3], "max_tokens": 4, "stream": False}
        while True:
            answer = await client.ask(Question("completions", body))
            asked.answered += answer.failure is None
            if answer.failure is not None:
                asked.failed[answer.failure.partition(":")[0]] += 1
            await asyncio.sleep(ASK_EVERY_S)

    task = asyncio.create_task(ask_on())
    try:
        yield asked
    finally:
        task.cancel()
        await asyncio.wait([task])


def _reload(scene: Scene) -> None:
    """Have the file read again, and wait until it is in force."""
    service = scene.service
    before = service.output.read_bytes().count(APPLIED)
    service.process.send_signal(signal.SIGHUP)
    wait_until(
        lambda: service.output.read_bytes().count(APPLIED) > before,
        120.0,
        "the first configuration",
    )


@contextlib.contextmanager
def _guard_folder(settings: IncidentSettings) -> Iterator[tuple[str, Path | None]]:
    """A policy that leaves rungs soon, and a small disk if there can be one."""
    with guard_file(settings.leave_for_s) as policy, _small_disk() as ledger:
        yield str(policy), ledger


@contextlib.contextmanager
def _small_disk() -> Iterator[Path | None]:
    """A folder on a disk of its own; None where that is not allowed."""
    with tempfile.TemporaryDirectory(prefix="cd") as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder]
        unmount = ["umount", "--lazy", folder]
        try:
            subprocess.run(mount, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            yield None
            return
        try:
            yield Path(folder)
        finally:
            subprocess.run(unmount, check=False, capture_output=True)
