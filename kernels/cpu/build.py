"""Compiles the C++ kernels at first use, and keeps what came out.

Owns the compiler's flags, and the name under which a library is kept: a digest of the sources,
the compiler's version, the flags and the kind of processor, so that nothing stale is ever loaded
and a folder may be shared by machines of different kinds. Reads no environment; the caller says
where to keep things.

    BuildError            one line that says what to do
    ├── CompilerMissing
    └── CompilerFailed
"""

from __future__ import annotations

import enum
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

__all__ = ["BuildError", "CompilerFailed", "CompilerMissing", "Processor", "build", "describe",
           "processors"]  # fmt: skip

_SOURCES = Path(__file__).parent
_COMPILERS = ("c++", "g++", "clang++")
_TIMEOUT_S = 300.0
# Products and sums are fused where the source says so and nowhere else: a compiler that fused by
# its own lights would give equal sums different bits.
_FLAGS = (
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-pthread",
)


_AVX2 = ("-mavx2", "-mfma", "-mf16c")
_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", *_AVX2)


class BuildError(Exception):
    """There is no library of kernels; the message is one line that says why."""


class CompilerMissing(BuildError):
    """No C++ compiler was found."""


class CompilerFailed(BuildError):
    """The compiler could not be run, or refused the sources."""


class Processor(enum.Enum):
    """What the kernels are compiled for, best first. All but the last give the same bits."""

    AVX512_VNNI = (*_AVX512, "-mavx512vnni")
    AVX512 = _AVX512
    AVX2_VNNI = (*_AVX2, "-mavxvnni")
    AVX2 = _AVX2
    PORTABLE = ()
    """Whatever the compiler makes of loops: slow where it lacks a fused multiply-add, and then
    float32 sums have last bits of their own; quantised products are the same here too."""


def processors() -> list[Processor]:
    """The kinds that this machine can run, best first."""
    found = torch.backends.cpu.get_cpu_capability()
    wide, narrow = found == "AVX512", found in ("AVX512", "AVX2")
    has = _vnni()
    runs = {
        Processor.AVX512_VNNI: wide and "avx512_vnni" in has,
        Processor.AVX512: wide,
        Processor.AVX2_VNNI: narrow and "avx_vnni" in has,
        Processor.AVX2: narrow,
        Processor.PORTABLE: True,
    }
    return [kind for kind in Processor if runs[kind]]


def _vnni() -> frozenset[str]:
    """Instructions for sums of small integers, by Linux's names: not every torch tells of them."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return frozenset()
    return frozenset(re.findall(r"\bavx(?:512)?_vnni\b", text))


def build(folder: Path, *, compiler: str | None = None, kind: Processor | None = None) -> Path:
    """The shared library, compiled unless the folder has it.

    Any number of processes may do this at once: each compiles in a folder of its own, and the
    finished library is put in place in one step.

    Args:
        folder: where libraries are kept; made if need be.
        compiler: name or path; by default the first of c++, g++ and clang++ that is there.
        kind: by default the best that this machine runs and the compiler knows.

    Raises:
        BuildError: see above.
    """
    program = _find(compiler)
    *kinds, last = [kind] if kind else processors()
    for better in kinds:
        try:
            return _build(folder, program, better)
        except CompilerFailed:  # an old one does not know the newest instructions
            continue
    return _build(folder, program, last)


def describe(library: Path) -> dict[str, str]:
    """How a library was made that ``build`` gave by the default compiler."""
    kind = Processor[library.name.split("-")[1].upper()]
    return {
        "library": library.name,
        "compiler": _run([_find(None), "--version"]).splitlines()[0],
        "flags": " ".join((*_FLAGS, *kind.value)),
    }


def _build(folder: Path, program: str, kind: Processor) -> Path:
    library = folder / f"kernels-{kind.name.lower()}-{_digest(program, kind)}.so"
    if library.is_file():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="building-", dir=folder) as work:
            os.replace(_compile(program, kind, Path(work)), library)
    except OSError as error:
        raise BuildError(f"cannot keep compiled kernels in {folder}: {error.strerror}") from None
    return library


def _find(compiler: str | None) -> str:
    for name in (compiler,) if compiler else _COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return path
    missing = (
        f"{compiler} is not there" if compiler else f"none of {', '.join(_COMPILERS)} is there"
    )
    raise CompilerMissing(f"no C++ compiler: {missing}; install one (Debian: apt-get install g++)")


def _digest(program: str, kind: Processor) -> str:
    digest = hashlib.sha256()
    for part in (_run([program, "--version"]), platform.machine(), *_FLAGS, *kind.value):
        digest.update(part.encode() + b"\0")
    for source in sorted([*_SOURCES.glob("*.cpp"), *_SOURCES.glob("*.h")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _compile(program: str, kind: Processor, work: Path) -> Path:
    """Every source by itself, several at once, then all of them together."""
    sources = sorted(_SOURCES.glob("*.cpp"))
    objects = [str(work / f"{source.stem}.o") for source in sources]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        commands = [
            [program, *_FLAGS, *kind.value, "-c", str(source), "-o", name]
            for source, name in zip(sources, objects, strict=True)
        ]
        list(pool.map(_run, commands))
    library = work / "kernels.so"
    _run([program, *_FLAGS, "-shared", *objects, "-o", str(library)])
    return library


def _run(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerFailed(f"cannot run the C++ compiler {command[0]}: {error}") from None
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        told = next((line for line in lines if "error" in line), lines[0] if lines else "no reason")
        raise CompilerFailed(f"the C++ compiler {command[0]} failed: {told.strip()}")
    return done.stdout
