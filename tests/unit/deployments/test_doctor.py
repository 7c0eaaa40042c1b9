from __future__ import annotations

import argparse
import io
import json
import socket
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from chairlift.cluster.machine import Cores, Cpu, Memory
from chairlift.deployments import doctor
from chairlift.deployments.doctor_checks import Finding, Verdict, inspect
from chairlift.deployments.doctor_facts import Facts, ModelFacts, gather

GIB = 1024**3

GOOD = Facts(
    python=(3, 12, 1),
    system="Linux",
    machine="x86_64",
    cpu=Cpu("Some CPU", frozenset({"avx2", "avx512f", "amx_tile"})),
    cores=Cores(total=8, allowed=8, quota=None),
    memory=Memory(total=16 * GIB, available=8 * GIB),
    compilers=(("g++", "g++ 12.2.0"),),
    gpus=(),
    torch_gpus=None,
    packages={"torch": "2.13.0+cpu", "ray": "2.60.0", "rich": "13.9"},
    model=ModelFacts("/some/model.gguf", None, None),
    port=8000,
    port_fault=None,
    shared_memory=GIB,
    temp_folder="/tmp",
    temp_fault=None,
)


def finding(subject: str, **changes: Any) -> Finding:
    (found,) = [each for each in inspect(replace(GOOD, **changes)) if each.subject == subject]
    return found


def test_a_good_machine_has_nothing_but_good_findings() -> None:
    findings = inspect(GOOD)
    assert {each.verdict for each in findings} == {Verdict.OK}
    assert all(each.detail and not each.advice for each in findings)
    assert finding("cpu").detail == "Some CPU: AVX2, AVX-512, AMX"


@pytest.mark.parametrize(
    ("subject", "changes", "advice"),
    [
        ("python", {"python": (3, 10, 4)}, "3.11"),
        ("memory", {"model": ModelFacts("x", None, "too little memory: …")}, "too little memory"),
        ("packages", {"packages": GOOD.packages | {"grpcio": None}}, "make setup"),
        ("temporary folder", {"temp_fault": "Read-only file system"}, "TMPDIR"),
    ],
)
def test_what_keeps_chairlift_from_running_is_a_problem(
    subject: str, changes: dict[str, Any], advice: str
) -> None:
    found = finding(subject, **changes)
    assert found.verdict is Verdict.PROBLEM
    assert advice in found.advice


@pytest.mark.parametrize(
    ("subject", "changes", "advice"),
    [
        ("system", {"system": "Darwin"}, "tested on Linux"),
        ("cpu", {"cpu": Cpu("Old", frozenset({"sse2"}))}, "slowly"),
        ("cores", {"cores": Cores(8, 1, None)}, "take turns"),
        ("cores", {"cores": Cores(8, 8, 2.5)}, "workers.threads to 2"),
        ("compiler", {"compilers": ()}, "apt-get install g++"),
        ("torch", {"packages": {"torch": "2.14.0"}}, "tested with 2.13"),
        ("ray", {"packages": {"ray": "2.61.0"}}, "tested with 2.60.0"),
        ("model", {"model": ModelFacts("", "install it", None)}, "install it"),
        ("port", {"port_fault": "choose another with --port"}, "--port"),
        ("shared memory", {"shared_memory": None}, "temporary folder"),
        ("shared memory", {"shared_memory": 64 * 1024**2}, "--shm-size"),
    ],
)
def test_what_could_be_better_is_a_warning(
    subject: str, changes: dict[str, Any], advice: str
) -> None:
    found = finding(subject, **changes)
    assert found.verdict is Verdict.WARNING
    assert advice in found.advice


@pytest.mark.parametrize(
    ("subject", "changes", "detail"),
    [
        ("gpu", {"gpus": ("H200",), "torch_gpus": ("H200",)}, "H200; torch can use it"),
        ("gpu", {"gpus": ("H200",), "torch_gpus": ()}, "H200; torch cannot use it"),
        ("gpu", {"gpus": ("H200",), "torch_gpus": None}, "H200; torch cannot use it"),
    ],
)
def test_what_chairlift_does_not_need_is_told_without_advice(
    subject: str, changes: dict[str, Any], detail: str
) -> None:
    found = finding(subject, **changes)
    assert (found.verdict, found.advice) == (Verdict.OK, "")
    assert found.detail.startswith(detail)


def test_a_missing_torch_is_said_once() -> None:
    findings = inspect(replace(GOOD, packages={"torch": None, "ray": "2.60.0"}))
    assert [each.detail for each in findings if each.verdict is not Verdict.OK] == [
        "missing: torch"
    ]


def test_the_report_shows_advice_and_takes_no_markup_from_details() -> None:
    out = io.StringIO()
    findings = [Finding("model", Verdict.WARNING, "[red]name[/red]", "do this")]
    doctor.render(findings, Console(file=out, width=200))
    text = out.getvalue()
    assert "[red]name[/red]" in text and "do this" in text


def test_this_machine_can_be_looked_at(capsys: pytest.CaptureFixture[str]) -> None:
    """All of it for real; the verdicts are the machine's, but a taken port must show."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        parser = argparse.ArgumentParser()
        doctor.add_arguments(parser)
        code = doctor.run(parser.parse_args(["--json", "--port", str(port)]))
    findings = {each["subject"]: each for each in json.loads(capsys.readouterr().out)}
    assert findings["port"]["verdict"] == "warning"
    assert str(port) in findings["port"]["detail"]
    assert code == any(each["verdict"] == "problem" for each in findings.values())


def test_looking_reads_versions_without_importing() -> None:
    packages = gather(port=1).packages
    assert packages["torch"] is not None
    assert "pytest" not in packages, "an extra is no requirement"
