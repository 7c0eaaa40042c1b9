import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from chairlift.cluster.config import load_config
from chairlift.evaluation import drill_incident
from chairlift.evaluation.drill_incident import IncidentSettings
from chairlift.evaluation.drill_incident_faults import INCIDENTS, Incident, NotHere, Scene
from chairlift.evaluation.drill_report import Report
from chairlift.evaluation.drill_service import Service
from chairlift.evaluation.runbook_shell import RunbookShell
from chairlift.evaluation.runbooks import Command, read_runbooks

PAGE = Path(drill_incident.PAGE).read_text(encoding="utf-8")


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda each: each.name)
def test_each_incident_has_a_runbook_that_shows_it_and_its_end(incident):
    runbook = read_runbooks(PAGE)[incident.runbook]
    for part in ("First look", "Action"):
        assert any(command.shows for command in runbook.commands(part))


def test_the_service_that_is_broken_is_configured_as_runbooks_edit_it(tmp_path: Path):
    settings = IncidentSettings()
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(settings.config(str(tmp_path / "guard.yaml"), tmp_path)))
    config = load_config(file, environment={})
    assert config.workers.replicas == settings.replicas
    assert set(config.tenants) == {"anonymous", "heavy", "lapsed"}
    runbooks = read_runbooks(PAGE)

    def edited(runbook: str, **values: str):
        """The configuration after the runbook's edits; nothing else of it is run."""
        edits = [each for each in runbooks[runbook].commands("Action") if "sed -i" in each.text]
        shell = RunbookShell(tmp_path, {"CONFIG": str(file)} | values)
        done = asyncio.run(shell.follow(edits, 1.0))
        assert done.ok, done.output
        return load_config(file, environment={})

    entry = '{hash: "sha256:' + "0" * 64 + '", expires: "2099-01-01"}'
    assert edited("A tenant floods", TENANT="heavy").tenants["heavy"].max_requests == 4
    assert (
        len(edited("A key has expired", TENANT="lapsed", ENTRY=entry).tenants["lapsed"].keys) == 2
    )
    assert edited("ChairliftSignalOfferedLoad", REPLICAS="4").workers.replicas == 4
    assert edited("The disk of the ledger is full").ledger.disk == 1024**2


def test_a_shell_knows_the_program_and_the_variables(tmp_path: Path):
    shell = RunbookShell(tmp_path, {"NAME": "there"})
    commands = (
        Command("MADE=$(chairlift key)", None),
        Command('echo "$MADE" | grep -o "sha256:" && echo $NAME $MORE', "^$NAME on$"),
    )
    done = asyncio.run(shell.follow(commands, 5.0, {"MORE": "on"}))
    assert done.ok, done.output
    failed = asyncio.run(shell.follow([Command("chairlift nothing", None)], 5.0))
    assert not failed.ok
    assert "invalid choice" in failed.last_words


YES = Command("echo yes", "yes")


class Process:
    pid = 1


def broken(tmp_path: Path, incident: Incident, action: str) -> Report:
    page = (
        "## Runbooks\n\n### R\n\n**First look.**\n\n```sh\necho $WORD   # shows trouble\n```\n\n"
        f"**Action.**\n\n```sh\n{action}\n```\n"
    )
    scene = Scene(Service(Process(), 1, tmp_path / "output"), tmp_path / "c.yaml", 1.0, 1, 1)  # type: ignore[arg-type]
    report = Report("incident", {})
    settings = IncidentSettings(seen_s=0.0, mended_s=0.0)
    asyncio.run(drill_incident._break(scene, settings, incident, read_runbooks(page), report))
    return report


@asynccontextmanager
async def trouble(scene: Scene):
    yield {"WORD": "trouble"}


@asynccontextmanager
async def not_here(scene: Scene):
    raise NotHere("no such disk")
    yield {}


def test_every_step_that_held_counts_and_one_that_did_not_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(drill_incident, "ANSWERED", YES)
    monkeypatch.setattr(drill_incident, "WELL", YES)
    report = broken(tmp_path, Incident("x", "R", trouble), "echo mended   # shows mended")
    assert [claim.measured for claim in report.claims] == [4]
    report = broken(tmp_path, Incident("x", "R", trouble), "echo worse   # shows mended")
    assert not report.holds
    assert "never showed mended" in str(report.figures["x: went wrong"])


def test_what_cannot_be_broken_here_is_said_and_not_claimed(tmp_path, monkeypatch):
    monkeypatch.setattr(drill_incident, "WELL", YES)
    report = broken(tmp_path, Incident("x", "R", not_here), "true")
    assert report.claims == []
    assert report.figures == {"x: not tried": "no such disk"}


def test_what_was_ill_before_is_not_broken(tmp_path, monkeypatch):
    monkeypatch.setattr(drill_incident, "WELL", Command("echo no", "yes"))
    report = broken(tmp_path, Incident("x", "R", trouble), "true")
    assert not report.holds
