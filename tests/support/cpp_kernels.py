"""The C++ kernels for every kind of processor that this one can stand in for."""

from __future__ import annotations

import pytest

from chairlift.cluster.config import cache_folder
from chairlift.kernels.cpu.build import CompilerMissing, Processor, build, processors
from chairlift.kernels.cpu.cpp_kernels import CppKernels
from chairlift.kernels.cpu.library import Library


def make_kernels(kind: Processor | None = None, *, threads: int = 2) -> CppKernels:
    """Skips the test where there is no compiler, or where the processor lacks the instructions."""
    if kind is not None and kind not in processors():
        pytest.skip(f"this processor has no {kind.name}")
    try:
        return CppKernels(Library(build(cache_folder(), kind=kind), threads))
    except CompilerMissing as error:
        pytest.skip(str(error))
