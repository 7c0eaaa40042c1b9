"""What the facts about a machine mean for Chairlift.

Owns the verdicts: a pure function from ``Facts`` to findings, which looks at nothing itself. A
problem is what keeps Chairlift from running at all; everything else that could be better is a
warning.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from chairlift.deployments.doctor_facts import Facts

__all__ = ["Finding", "Verdict", "inspect"]

_LEAST_PYTHON = (3, 11)
_TESTED = {"torch": ("2.4", "2.13"), "ray": ("2.60.0", "2.60.0")}
"""The oldest and the newest version that Chairlift is tested with."""

_FEATURES = {
    "AVX2": "avx2",
    "AVX-512": "avx512f",
    "AVX-VNNI": "avx_vnni",
    "AVX-512 VNNI": "avx512_vnni",
    "AVX-512 BF16": "avx512_bf16",
    "AMX": "amx_tile",
    "NEON": "asimd",
}
_GIB = 1024**3
_MIB = 1024**2
_OBJECT_STORE = 128 * _MIB


class Verdict(enum.StrEnum):
    """How a finding stands."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; ``advice`` says what to do, and is empty when all is well."""

    subject: str
    verdict: Verdict
    detail: str
    advice: str = ""


def inspect(facts: Facts) -> list[Finding]:
    """Every finding, also the good ones, in the order of the report."""
    return [
        _python(facts),
        _system(facts),
        _cpu(facts),
        _cores(facts),
        _memory(facts),
        _compiler(facts),
        _gpu(facts),
        _attention(facts),
        *_packages(facts),
        _model(facts),
        _port(facts),
        _shared_memory(facts),
        _temp_folder(facts),
    ]


def _python(facts: Facts) -> Finding:
    version = ".".join(map(str, facts.python))
    if facts.python[:2] < _LEAST_PYTHON:
        advice = "Chairlift needs Python 3.11 or newer"
        return Finding("python", Verdict.PROBLEM, version, advice)
    return Finding("python", Verdict.OK, version)


def _system(facts: Facts) -> Finding:
    detail = f"{facts.system} {facts.machine}"
    if facts.system != "Linux":
        advice = "Chairlift is tested on Linux only; on Windows use WSL 2"
        return Finding("system", Verdict.WARNING, detail, advice)
    return Finding("system", Verdict.OK, detail)


def _cpu(facts: Facts) -> Finding:
    present = [name for name, flag in _FEATURES.items() if flag in facts.cpu.features]
    detail = f"{facts.cpu.model or 'unknown model'}: {', '.join(present) or 'no vector features'}"
    if not {"avx2", "asimd"} & facts.cpu.features:
        advice = "without AVX2 or NEON tokens come slowly"
        return Finding("cpu", Verdict.WARNING, detail, advice)
    return Finding("cpu", Verdict.OK, detail)


def _cores(facts: Facts) -> Finding:
    cores = facts.cores
    detail = f"{cores.usable:g} usable of {cores.total}"
    if cores.allowed < cores.total:
        detail += f", {cores.allowed} by affinity"
    if cores.quota is not None:
        detail += f", quota {cores.quota:g}"
    if cores.usable < 2:
        advice = "with fewer than 2 cores, router and worker take turns"
        return Finding("cores", Verdict.WARNING, detail, advice)
    if cores.usable < cores.allowed:
        advice = f"set workers.threads to {max(1, int(cores.usable))}: more than the quota stall"
        return Finding("cores", Verdict.WARNING, detail, advice)
    return Finding("cores", Verdict.OK, detail)


def _memory(facts: Facts) -> Finding:
    memory = facts.memory
    detail = f"{memory.available / _GIB:.1f} GiB free of {memory.total / _GIB:.1f} GiB"
    if facts.model.memory_fault:
        return Finding("memory", Verdict.PROBLEM, detail, facts.model.memory_fault)
    if facts.model.memory:
        detail += f"; the embedded model's service takes {facts.model.memory / _GIB:.1f} GiB"
    return Finding("memory", Verdict.OK, detail)


def _compiler(facts: Facts) -> Finding:
    if not facts.compilers:
        advice = (
            "without a C++ compiler the kernels are plain torch: slower, and tokens may depend on "
            "what shares the batch; install one (Debian: apt-get install g++)"
        )
        return Finding("compiler", Verdict.WARNING, "none", advice)
    return Finding(
        "compiler", Verdict.OK, "; ".join(f"{name}: {text}" for name, text in facts.compilers)
    )


def _gpu(facts: Facts) -> Finding:
    if not facts.gpus:
        return Finding("gpu", Verdict.OK, "none; Chairlift computes on the CPU")
    gpus = "; ".join(facts.gpus)
    if not facts.torch_gpus:
        advice = "Chairlift computes on the CPU; install a torch that is built for this driver"
        return Finding("gpu", Verdict.WARNING, f"{gpus}; torch cannot use it", advice)
    return Finding("gpu", Verdict.OK, f"{gpus}; torch can use it")


def _attention(facts: Facts) -> Finding:
    """What will compute attention, and why not something that is often faster."""
    found = facts.attention
    if found is None:
        used = "C++" if facts.compilers else "plain torch"
        return Finding("attention", Verdict.OK, f"{used} on the CPU; FlashAttention needs a GPU")
    missing = [name for name, reason in found.refusals if reason == "not installed"]
    others = [f"{name}: {reason}" for name, reason in found.refusals if name not in missing]
    if missing:
        others.append(f"not installed: {', '.join(missing)}")
    if found.flash is None and found.triton is None:
        advice = "without FlashAttention or Triton a GPU is slow: pip install triton"
        return Finding("attention", Verdict.WARNING, "; ".join(["plain torch", *others]), advice)
    used = found.flash or f"Triton {found.triton}"
    return Finding("attention", Verdict.OK, "; ".join([used, *others]))


def _packages(facts: Facts) -> list[Finding]:
    findings = []
    for name, (oldest, newest) in _TESTED.items():
        version = facts.packages.get(name)
        if version is None:
            continue
        known = _numbers(oldest) <= _numbers(version)[: len(_numbers(newest))] <= _numbers(newest)
        tested = newest if oldest == newest else f"{oldest} to {newest}"
        advice = "" if known else f"tested with {tested}: run make setup for what was tested"
        verdict = Verdict.OK if known else Verdict.WARNING
        findings.append(Finding(name, verdict, version, advice))
    missing = [name for name, version in facts.packages.items() if version is None]
    if missing:
        advice = "run make setup, or pip install 'chairlift[serve]'"
        detail = f"missing: {', '.join(missing)}"
        findings.append(Finding("packages", Verdict.PROBLEM, detail, advice))
    else:
        findings.append(Finding("packages", Verdict.OK, f"{len(facts.packages)} of them present"))
    return findings


def _numbers(version: str) -> tuple[int, ...]:
    """``2.13.0+cpu`` to (2, 13, 0): the part after a plus sign names the build."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0]))


def _model(facts: Facts) -> Finding:
    if facts.model.fault:
        # Another model can be served without it.
        return Finding("model", Verdict.WARNING, "no embedded model", facts.model.fault)
    detail = facts.model.path
    if facts.model.math:
        detail += f", computed in {facts.model.math}"
    return Finding("model", Verdict.OK, detail)


def _port(facts: Facts) -> Finding:
    if facts.port_fault:
        return Finding("port", Verdict.WARNING, f"{facts.port} is taken", facts.port_fault)
    return Finding("port", Verdict.OK, f"{facts.port} is free")


def _shared_memory(facts: Facts) -> Finding:
    free = facts.shared_memory
    if free is None:
        advice = "Ray will use the temporary folder instead"
        return Finding("shared memory", Verdict.WARNING, "no /dev/shm", advice)
    detail = f"{free / _MIB:.0f} MiB free in /dev/shm"
    if free < 2 * _OBJECT_STORE:
        advice = f"Ray's object store takes {_OBJECT_STORE // _MIB} MiB: docker run --shm-size=1g"
        return Finding("shared memory", Verdict.WARNING, detail, advice)
    return Finding("shared memory", Verdict.OK, detail)


def _temp_folder(facts: Facts) -> Finding:
    if facts.temp_fault:
        detail = f"{facts.temp_folder}: {facts.temp_fault}"
        advice = "make room there, or set TMPDIR to a folder that can be written"
        return Finding("temporary folder", Verdict.PROBLEM, detail, advice)
    return Finding("temporary folder", Verdict.OK, facts.temp_folder)
