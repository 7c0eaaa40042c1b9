"""Everything that ``chairlift doctor`` looks at on this machine.

Owns the looking; judges nothing (``doctor_checks`` does). Never raises: what cannot be read is a
fact too. Imports neither torch nor ray, so it is quick and works when they are missing.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.errors import StartupError
from chairlift.cluster.machine import (
    Cores,
    Cpu,
    Memory,
    read_cores,
    read_cpu,
    read_memory,
)
from chairlift.cluster.model_files import read_spec, resolve_model
from chairlift.deployments.memory_needs import memory_needed
from chairlift.deployments.preflight import check_memory, check_port
from chairlift.workers.weight_sizes import packed_size

__all__ = ["AttentionFacts", "Facts", "ModelFacts", "gather"]

_COMPILERS = ("c++", "g++", "clang++")

_TORCH_CUDA = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(json.dumps([torch.cuda.get_device_name(i) for i in range(count)]))
"""

_ATTENTION = """
import json, sys
from chairlift.kernels.flash import describe
print(json.dumps(describe(exact=sys.argv[1] == "True", block_size=int(sys.argv[2]))))
"""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The embedded model; each fault is one line, or None when all is well.

    ``memory`` is what a service with it takes at the least, ``math`` how it is computed.
    """

    path: str
    fault: str | None
    memory_fault: str | None
    memory: int = 0
    math: str = ""


@dataclass(frozen=True, slots=True)
class AttentionFacts:
    """What could compute attention on the GPU.

    Attributes:
        flash: the package of FlashAttention that fits, if any.
        refusals: name of each package that was looked at before, and why it does not fit.
        triton: its version, if it is there.
    """

    flash: str | None
    refusals: tuple[tuple[str, str], ...]
    triton: str | None


@dataclass(frozen=True, slots=True)
class Facts:
    """One look at the machine.

    Attributes:
        packages: what Chairlift requires, by name, with the version or None where missing.
        compilers: name and version of each C++ compiler.
        gpus: what NVIDIA's driver lists, one line each.
        torch_gpus: what torch can use; None when it was not asked or gave no answer.
        attention: on the GPU; None where torch can use none.
        port_fault, temp_fault: what is wrong with the port and the temporary folder, if anything.
        shared_memory: free bytes of /dev/shm; None where there is none.
    """

    python: tuple[int, int, int]
    system: str
    machine: str
    cpu: Cpu
    cores: Cores
    memory: Memory
    compilers: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]
    torch_gpus: tuple[str, ...] | None
    attention: AttentionFacts | None
    packages: dict[str, str | None]
    model: ModelFacts
    port: int
    port_fault: str | None
    shared_memory: int | None
    temp_folder: str
    temp_fault: str | None


def gather(port: int) -> Facts:
    """Look at this machine; ``port`` is the one that the HTTP API is to listen on."""
    gpus = _gpus()
    torch_gpus = _torch_gpus() if gpus else None
    memory = read_memory()
    return Facts(
        python=sys.version_info[:3],
        system=platform.system(),
        machine=platform.machine(),
        cpu=read_cpu(),
        cores=read_cores(),
        memory=memory,
        compilers=_compilers(),
        gpus=gpus,
        torch_gpus=torch_gpus,
        attention=_attention() if torch_gpus else None,
        packages=_packages(),
        model=_model(memory.available),
        port=port,
        port_fault=_port_fault(port),
        shared_memory=_free_bytes(Path("/dev/shm")),  # nosec B108  # it only looks
        temp_folder=tempfile.gettempdir(),
        temp_fault=_temp_fault(),
    )


def _compilers() -> tuple[tuple[str, str], ...]:
    found = []
    for name in _COMPILERS:
        if shutil.which(name) and (output := _output(name, "--version")):
            found.append((name, output.splitlines()[0]))
    return tuple(found)


def _gpus() -> tuple[str, ...]:
    query = "--query-gpu=name,memory.total,driver_version"
    output = _output("nvidia-smi", query, "--format=csv,noheader") or ""
    return tuple(line.strip() for line in output.splitlines() if line.strip())


def _torch_gpus() -> tuple[str, ...] | None:
    """Asked in a process of its own: importing torch takes seconds, and may crash."""
    output = _output(sys.executable, "-c", _TORCH_CUDA, timeout_s=60.0)
    try:
        return tuple(json.loads(output or ""))
    except ValueError:
        return None


def _attention() -> AttentionFacts:
    """Asked in a process of its own as well: a package built for another torch may crash."""
    engine = ServiceConfig().engine
    arguments = (_ATTENTION, str(engine.exact), str(engine.block_size))
    output = _output(sys.executable, "-c", *arguments, timeout_s=300.0)
    try:
        # Packages print what they like before.
        found = json.loads((output or "").splitlines()[-1])
        flash, refusals = found["package"], tuple((name, why) for name, why in found["refusals"])
    except (ValueError, LookupError, TypeError):
        flash, refusals = None, (("FlashAttention", "crashed when it was tried, or hung"),)
    return AttentionFacts(flash, refusals, _version("triton"))


def _packages() -> dict[str, str | None]:
    """Versions of what serving requires, read without importing any of it."""
    try:
        requirements = metadata.requires("chairlift") or []
    except metadata.PackageNotFoundError:
        return {"chairlift": None}
    names = [
        re.split(r"[^\w.-]", text)[0]
        for text in requirements
        if "extra ==" not in text or re.search("extra == [\"']serve", text)
    ]
    return {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _model(available: int) -> ModelFacts:
    try:
        path = resolve_model(ServiceConfig().model.path)
        spec = read_spec(path)
    except StartupError as error:
        return ModelFacts("", str(error), None)
    try:
        config = ServiceConfig()
        weights = packed_size(config.engine, spec)
        needed = memory_needed(config, spec, weights)
        check_memory(config, spec, needed, available)
    except StartupError as error:
        return ModelFacts(str(path), None, str(error))
    return ModelFacts(str(path), None, None, needed, weights.math)


def _port_fault(port: int) -> str | None:
    try:
        check_port(ServiceConfig().http.host, port)
    except StartupError as error:
        return str(error)
    return None


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _temp_fault() -> str | None:
    try:
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"chairlift")
    except OSError as error:
        return error.strerror or str(error)
    return None


def _output(*command: str, timeout_s: float = 10.0) -> str | None:
    """What a command prints; None when it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
