from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys

import pytest

from chairlift.kernels.cpu import build as build_module
from chairlift.kernels.cpu.build import (
    BuildError,
    CompilerFailed,
    CompilerMissing,
    Processor,
    build,
    describe,
    processors,
)

PORTABLE = Processor.PORTABLE
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="there is no C++ compiler"
)


@pytest.fixture
def little(tmp_path, monkeypatch):
    """Sources that compile in no time, and a folder to keep the result in."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "api.h").write_text("int answer();\n")
    (sources / "one.cpp").write_text('#include "api.h"\nint answer() { return 42; }\n')
    (sources / "two.cpp").write_text('#include "api.h"\nint twice() { return 2 * answer(); }\n')
    monkeypatch.setattr(build_module, "_SOURCES", sources)
    return sources, tmp_path / "kept"


def compiler_that(tmp_path, script, name="my-c++"):
    program = tmp_path / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def real_compiler():
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))))


@needs_compiler
def test_the_second_build_compiles_nothing(little, tmp_path):
    log = tmp_path / "log"
    compiler = compiler_that(tmp_path, f'echo "$@" >> {log}\nexec {real_compiler()} "$@"')
    first = build(little[1], compiler=compiler)
    assert len(log.read_text().splitlines()) == 4  # version, one, two, all together
    log.unlink()
    assert build(little[1], compiler=compiler) == first
    assert log.read_text().splitlines() == ["--version"]
    assert [file.name for file in little[1].iterdir()] == [first.name]


@needs_compiler
def test_a_library_says_how_it_was_made(little):
    library = build(little[1], kind=PORTABLE)
    told = describe(library)
    assert told["library"] == library.name
    assert told["compiler"]
    assert "-ffp-contract=off" in told["flags"].split()


@needs_compiler
def test_what_a_library_depends_on_is_in_its_name(little, tmp_path):
    sources, kept = little
    libraries = [build(kept), build(kept, kind=PORTABLE)]
    other = compiler_that(tmp_path, f'[ "$1" = --version ] && echo 99 || {real_compiler()} "$@"')
    libraries.append(build(kept, compiler=other))
    for file in ("one.cpp", "api.h"):
        path = sources / file
        path.write_text(f"// another\n{path.read_text()}")
        libraries.append(build(kept))
    assert len(set(libraries)) == 5 - (processors() == [PORTABLE])
    assert all(library.is_file() for library in libraries)


def test_no_compiler(little, monkeypatch):
    monkeypatch.setattr(build_module.shutil, "which", lambda name: None)
    with pytest.raises(CompilerMissing, match=r"no C\+\+ compiler.*install one"):
        build(little[1])
    with pytest.raises(CompilerMissing, match="nowhere"):
        build(little[1], compiler="nowhere")


def test_a_compiler_that_does_not_run(little, tmp_path):
    compiler = compiler_that(tmp_path, "echo it is broken >&2; exit 3")
    with pytest.raises(CompilerFailed, match=r"my-c.*failed: it is broken"):
        build(little[1], compiler=compiler)


@needs_compiler
def test_sources_that_do_not_compile(little):
    sources, kept = little
    (sources / "two.cpp").write_text("int twice() { return nothing; }\n")
    with pytest.raises(CompilerFailed, match=r"two\.cpp.*error.*nothing") as error:
        build(kept)
    assert "\n" not in str(error.value)
    assert not list(kept.iterdir())


@needs_compiler
def test_a_compiler_that_does_not_know_the_newest_instructions(little, tmp_path, monkeypatch):
    monkeypatch.setattr(build_module, "processors", lambda: [Processor.AVX2_VNNI, PORTABLE])
    script = f'case "$*" in *avxvnni*) echo error: what >&2; exit 1;; esac\n{real_compiler()} "$@"'
    library = build(little[1], compiler=compiler_that(tmp_path, script))
    assert library.name.startswith("kernels-portable-")


@needs_compiler
def test_a_folder_that_cannot_be_written(little):
    little[1].write_text("a file")
    with pytest.raises(BuildError, match="cannot keep compiled kernels"):
        build(little[1])


@needs_compiler
def test_processes_may_build_at_the_same_time(little, tmp_path):
    sources, kept = little
    slow = compiler_that(tmp_path, f'sleep 0.2; exec {real_compiler()} "$@"')
    program = (
        "import sys; from pathlib import Path\n"
        "from chairlift.kernels.cpu import build\n"
        "build._SOURCES = Path(sys.argv[1])\n"
        "print(build.build(Path(sys.argv[2]), compiler=sys.argv[3]))"
    )
    command = [sys.executable, "-c", program, str(sources), str(kept), slow]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = {process.communicate(timeout=120)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert [str(file) for file in kept.iterdir()] == list(found)
    assert ctypes.CDLL(found.pop())
