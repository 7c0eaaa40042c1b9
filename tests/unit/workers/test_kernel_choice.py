from __future__ import annotations

import logging

import pytest

from chairlift.cluster.errors import StartupError
from chairlift.kernels.cpu.build import CompilerMissing
from chairlift.kernels.cpu.cpp_kernels import CppKernels
from chairlift.kernels.torch_kernels import TorchKernels
from chairlift.workers import kernel_choice
from chairlift.workers.kernel_choice import choose_kernels
from support.cpp_kernels import make_kernels


@pytest.fixture
def no_compiler(monkeypatch):
    def build(_folder):
        raise CompilerMissing("no C++ compiler: install one")

    monkeypatch.setattr(kernel_choice, "build", build)


def test_torch_when_asked_for(no_compiler, caplog):
    kernels = choose_kernels("torch", 1)
    assert isinstance(kernels, TorchKernels)
    assert not kernels.exact
    assert not caplog.records


@pytest.mark.parametrize("choice", ["auto", "cpp"])
def test_cpp_where_there_is_a_compiler(choice):
    make_kernels()  # skips where there is none
    kernels = choose_kernels(choice, 1)
    assert isinstance(kernels, CppKernels)
    assert kernels.exact


def test_auto_without_a_compiler_warns_of_what_is_lost(no_compiler, caplog):
    with caplog.at_level(logging.WARNING):
        assert isinstance(choose_kernels("auto", 1), TorchKernels)
    assert "tokens may depend on what shares the batch: no C++ compiler" in caplog.text


def test_cpp_without_a_compiler_is_refused(no_compiler):
    with pytest.raises(StartupError, match=r"^engine\.kernels: no C\+\+ compiler: install one$"):
        choose_kernels("cpp", 1)
