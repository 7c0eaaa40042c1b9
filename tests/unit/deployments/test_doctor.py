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
from chairlift.deployments import doctor, doctor_facts
from chairlift.deployments.doctor_checks import Finding, Verdict, inspect
from chairlift.deployments.doctor_facts import AttentionFacts, Facts, ModelFacts, gather

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
    attention=None,
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
        ("gpu", {"gpus": ("H200",), "torch_gpus": ()}, "built for this driver"),
        ("gpu", {"gpus": ("H200",), "torch_gpus": None}, "built for this driver"),
        ("attention", {"attention": AttentionFacts(None, (), None)}, "pip install triton"),
        ("torch", {"packages": {"torch": "2.14.0"}}, "tested with 2.4 to 2.13"),
        ("torch", {"packages": {"torch": "2.3.1"}}, "tested with 2.4 to 2.13"),
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


@pytest.mark.parametrize("version", ["2.4.0+cu121", "2.9.1", "2.13.1"])
def test_torch_may_be_any_between_the_oldest_and_the_newest_tested(version: str) -> None:
    assert finding("torch", packages={"torch": version}).verdict is Verdict.OK


def test_a_gpu_that_torch_can_use_is_told() -> None:
    found = finding("gpu", gpus=("H200",), torch_gpus=("H200",))
    assert (found.verdict, found.detail) == (Verdict.OK, "H200; torch can use it")


REFUSALS = (
    ("FlashAttention 3", "not installed"),
    ("FlashAttention 4", "not installed"),
    ("vllm-flash-attn", "it is built for torch 2.4.0, and this is torch 2.13.0"),
)


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({}, "C++ on the CPU; FlashAttention needs a GPU"),
        ({"compilers": ()}, "plain torch on the CPU; FlashAttention needs a GPU"),
        (
            {"attention": AttentionFacts("flash-attn 2.8.3", REFUSALS, "3.7.1")},
            "flash-attn 2.8.3; vllm-flash-attn: it is built for torch 2.4.0, and this is torch "
            "2.13.0; not installed: FlashAttention 3, FlashAttention 4",
        ),
        (
            {"attention": AttentionFacts(None, REFUSALS[:2], "3.7.1")},
            "Triton 3.7.1; not installed: FlashAttention 3, FlashAttention 4",
        ),
    ],
)
def test_what_computes_attention_is_told_and_why_not_another(
    changes: dict[str, Any], detail: str
) -> None:
    found = finding("attention", **changes)
    assert (found.verdict, found.detail, found.advice) == (Verdict.OK, detail, "")


@pytest.mark.parametrize(
    ("answer", "flash", "refusals"),
    [
        (
            'hello\n{"package": null, "refusals": [["flash-attn", "not installed"]]}',
            None,
            (("flash-attn", "not installed"),),
        ),
        ('{"package": "flash-attn 2.8.3", "refusals": []}', "flash-attn 2.8.3", ()),
        (None, None, (("FlashAttention", "crashed when it was tried, or hung"),)),
        ("Segmentation", None, (("FlashAttention", "crashed when it was tried, or hung"),)),
    ],
)
def test_packages_of_attention_are_asked_in_a_process_that_may_say_anything(
    monkeypatch: pytest.MonkeyPatch,
    answer: str | None,
    flash: str | None,
    refusals: tuple[tuple[str, str], ...],
) -> None:
    def output(*command: str, timeout_s: float = 10.0) -> str | None:
        if command[0] == "nvidia-smi":
            return "H200\n"
        return answer if any("describe" in part for part in command) else '["H200"]'

    monkeypatch.setattr(doctor_facts, "_output", output)
    found = gather(port=1).attention
    assert found is not None
    assert (found.flash, found.refusals) == (flash, refusals)


def test_the_question_is_one_that_the_kernels_can_answer() -> None:
    """The real process; without a GPU every package has a reason."""
    found = doctor_facts._attention()
    assert found.flash is not None or "vllm-flash-attn" in dict(found.refusals)


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
