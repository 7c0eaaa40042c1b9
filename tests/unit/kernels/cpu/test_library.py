"""The pool of threads behind the kernels, and the border between Python and C++."""

from __future__ import annotations

import ctypes
import gc
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from chairlift.kernels.cpu import library as library_module
from chairlift.kernels.cpu.build import BuildError
from chairlift.kernels.cpu.library import Library
from chairlift.kernels.cpu.structs import Shape
from support.cpp_kernels import make_kernels

TASKS = Path("/proc/self/task")
needs_proc = pytest.mark.skipif(not TASKS.is_dir(), reason="threads are listed in /proc")


def threads() -> dict[str, str]:
    """State of each thread of this process by its id; S is sleeping."""
    states = {}
    for task in TASKS.iterdir():
        states[task.name] = (task / "stat").read_text().rpartition(")")[2].split()[0]
    return states


def wait_until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@needs_proc
def test_threads_sleep_between_kernels_and_end_with_their_owner():
    before = threads().keys()
    kernels = make_kernels(threads=4)
    started = threads().keys() - before
    assert len(started) == 3
    layer, x, out = kernels.pack(torch.randn(500, 500)), torch.randn(64, 500), torch.empty(64, 500)
    for _ in range(10):
        kernels.linear(x, layer, out=out)
    wait_until(lambda: all(threads()[thread] == "S" for thread in started))
    del kernels
    gc.collect()
    wait_until(lambda: started.isdisjoint(threads()))


def test_threads_may_call_at_the_same_time():
    kernels = make_kernels(threads=3)
    layer = kernels.pack(torch.randn(100, 60))
    inputs = [torch.randn(rows, 60) for rows in range(1, 33)]
    expected = [torch.empty(len(x), 100) for x in inputs]
    for x, out in zip(inputs, expected, strict=True):
        kernels.linear(x, layer, out=out)

    def many_times(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty(len(x), 100)
        for _ in range(50):
            out.fill_(torch.nan)
            kernels.linear(x, layer, out=out)
        return out

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(many_times, inputs))
    assert all(map(torch.equal, found, expected))


def test_flushed_denormals_of_the_calling_thread_change_nothing():
    """Torch's switch is one of the processor's, for one thread; the pool's others keep theirs."""
    kernels = make_kernels(threads=2)
    x, weight = torch.full((64, 40), 1e-30), torch.full((90, 40), 1e-10)
    layer, expected, found = kernels.pack(weight), torch.empty(64, 90), torch.empty(64, 90)
    kernels.linear(x, layer, out=expected)
    torch.set_flush_denormal(True)
    try:
        kernels.linear(x, layer, out=found)
    finally:
        torch.set_flush_denormal(False)
    assert expected.all()
    assert torch.equal(found, expected)


def test_a_file_that_is_no_library_is_refused_in_one_line(tmp_path):
    damaged = tmp_path / "kernels.so"
    damaged.write_bytes(b"\x7fELF and nothing more")
    with pytest.raises(BuildError, match="cannot load the compiled kernels") as error:
        Library(damaged, 1)
    assert "\n" not in str(error.value)


def test_signatures_are_those_of_the_header():
    make_kernels()
    header = (Path(library_module.__file__).parent / "api.h").read_text()
    for name, types in library_module._SIGNATURES.items():
        declared = re.search(rf"chairlift_{name}\(void\* pool, ([^)]*)\)", header)[1].split(",")
        assert [ctype_of(parameter) for parameter in declared] == list(types), name
    fields = ["heads", "kv_heads", "head_dim", "block_size", "half", "window", "scale", "soft_cap"]
    assert [name for name, _ in Shape._fields_] == fields


def ctype_of(parameter: str) -> type:
    if "*" in parameter:
        return ctypes.c_void_p
    kind = parameter.split()[0]
    return {"long": ctypes.c_long, "int": ctypes.c_int, "float": ctypes.c_float}[kind]
