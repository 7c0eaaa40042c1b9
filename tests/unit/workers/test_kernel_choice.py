from __future__ import annotations

import logging

import pytest
from gguf import GGMLQuantizationType

from chairlift.cluster.errors import StartupError
from chairlift.cluster.model_files import read_spec
from chairlift.kernels.cpu.build import CompilerMissing
from chairlift.kernels.cpu.cpp_kernels import CppKernels
from chairlift.kernels.torch_kernels import TorchKernels
from chairlift.workers import kernel_choice
from chairlift.workers.kernel_choice import choose_encodings, choose_kernels
from support.cpp_kernels import make_kernels
from support.tiny_llama import random_weights, write_folder, write_gguf


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


@pytest.fixture
def quantised(tmp_path):
    kinds = {"token_embd.weight": GGMLQuantizationType.Q8_0}
    path = write_gguf(
        tmp_path / "m.gguf",
        random_weights(),
        type_of=lambda name: kinds.get(name, GGMLQuantizationType.Q4_0),
    )
    return read_spec(path)


@pytest.mark.parametrize("choice", ["auto", "int8"])
def test_quantised_weights_are_computed_with_as_they_are(quantised, choice):
    assert choose_encodings(choice, make_kernels(), quantised) == {"Q4_0", "Q8_0"}


def test_or_in_float32_when_asked_for(quantised):
    assert choose_encodings("float32", make_kernels(), quantised) == set()


def test_without_quantised_weights_int8_is_refused(tmp_path):
    spec = read_spec(write_folder(tmp_path, random_weights()))
    assert choose_encodings("auto", make_kernels(), spec) == set()
    with pytest.raises(StartupError, match=r"^engine\.cpu_math: .* is no GGUF file with Q4_0, "):
        choose_encodings("int8", make_kernels(), spec)


def test_torch_computes_in_float32_only(quantised):
    assert choose_encodings("auto", TorchKernels(), quantised) == set()
    with pytest.raises(StartupError, match=r"^engine\.cpu_math: no C\+\+ kernels; choose auto"):
        choose_encodings("int8", TorchKernels(), quantised)
