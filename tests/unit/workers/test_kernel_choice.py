from __future__ import annotations

import logging
import sys

import pytest
import torch
from gguf import GGMLQuantizationType

from chairlift.cluster.config import EngineConfig
from chairlift.cluster.errors import ConfigError, StartupError
from chairlift.cluster.model_files import read_spec
from chairlift.kernels.cpu.build import CompilerMissing
from chairlift.kernels.cpu.cpp_kernels import CppKernels
from chairlift.kernels.torch_kernels import TorchKernels
from chairlift.workers import kernel_choice
from chairlift.workers.kernel_choice import (
    choose_device,
    choose_encodings,
    choose_gpu_kernels,
    choose_kernels,
)
from chairlift.workers.shards import share_of
from support.cpp_kernels import make_kernels
from support.llama_models import tiny_spec
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


@pytest.fixture
def gpus(monkeypatch):
    """Torch sees two."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def no_triton(monkeypatch):
    for name in [each for each in sys.modules if each.startswith("chairlift.kernels.triton")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", None)


@pytest.mark.parametrize("kernels", ["auto", "triton"])
@pytest.mark.parametrize("wanted", ["auto", "cuda"])
def test_a_gpu_computes_where_there_is_one_each_rank_on_its_own(gpus, wanted, kernels):
    engine = EngineConfig(device=wanted, kernels=kernels)
    assert [choose_device(engine, rank).index for rank in range(3)] == [0, 1, 0]
    assert choose_device(engine).type == "cuda"


@pytest.mark.parametrize("asked", [{"device": "cpu"}, {"kernels": "cpp"}, {"kernels": "torch"}])
def test_the_cpu_computes_when_asked_to(gpus, asked):
    assert choose_device(EngineConfig(**asked)).type == "cpu"


def test_the_cpu_computes_where_there_is_no_gpu(no_gpu):
    assert choose_device(EngineConfig()).type == "cpu"


def test_a_gpu_that_is_not_there_is_refused(no_gpu):
    with pytest.raises(ConfigError, match=r"^engine\.device: cuda asked for, but torch sees no"):
        choose_device(EngineConfig(device="cuda"))


@pytest.mark.parametrize("kernels", ["cpp", "torch"])
def test_kernels_of_a_cpu_are_refused_on_a_gpu(gpus, kernels):
    with pytest.raises(ConfigError, match=rf"^engine\.kernels: {kernels} computes on the CPU only"):
        choose_device(EngineConfig(device="cuda", kernels=kernels))


def test_triton_without_a_gpu_is_for_its_interpreter_only(no_gpu, monkeypatch):
    triton = pytest.importorskip("triton")
    engine = EngineConfig(kernels="triton")
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    assert choose_device(engine).type == "cpu"
    monkeypatch.setattr(triton.knobs.runtime, "interpret", False)
    with pytest.raises(ConfigError, match=r"^engine\.kernels: triton needs a GPU"):
        choose_device(engine)


def test_what_to_install_is_said_where_triton_is_missing(no_gpu, no_triton):
    spec, cpu = tiny_spec(), torch.device("cpu")
    says = r"^engine\.kernels: computing on a GPU needs triton; install .* the extra gpu"
    with pytest.raises(StartupError, match=says):
        choose_device(EngineConfig(kernels="triton"))
    with pytest.raises(StartupError, match=says):
        choose_gpu_kernels(EngineConfig(), spec, share_of(spec, 0, 1), cpu)


def gpu_kernels(**engine):
    pytest.importorskip("triton")
    spec = tiny_spec(stored_type="bfloat16")
    engine = EngineConfig(kernels="triton", **engine)
    return choose_gpu_kernels(engine, spec, share_of(spec, 0, 1), torch.device("cpu"))


def test_a_gpu_computes_in_the_type_of_the_file_unless_asked_otherwise():
    assert gpu_kernels().dtype == torch.bfloat16
    assert gpu_kernels(dtype="float16").dtype == torch.float16
    assert gpu_kernels().exact
    assert not gpu_kernels(exact=False).exact


def test_why_it_is_no_flash_attention_is_said(caplog):
    with caplog.at_level(logging.INFO):
        gpu_kernels()
    assert "attention by Triton kernels: FlashAttention 3: " in caplog.text
    with pytest.raises(StartupError, match=r"^engine\.attention: flash asked for, .*: Flash"):
        gpu_kernels(attention="flash")
    with pytest.raises(StartupError, match=r"^engine\.attention: flash asked for, .* float8"):
        gpu_kernels(attention="flash", kv_type="float8")
