"""What weights will take is what they take, and int8 is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType

from chairlift.cluster.config import EngineConfig
from chairlift.cluster.errors import ConfigError
from chairlift.cluster.model_files import read_spec, weight_bytes
from chairlift.kernels.torch_kernels import TorchKernels
from chairlift.workers.decoder_weights import DecoderWeights, pack_weights
from chairlift.workers.weight_sizes import PackedSize, packed_size
from chairlift.workers.weights import load_weights
from support.cpp_kernels import make_kernels
from support.tiny_llama import random_weights, write_folder, write_gguf


def bytes_of(weights: DecoderWeights) -> int:
    matrices = {id(each): each for each in (weights.embedding, weights.head)}
    size = weights.norm.nbytes
    for layer in weights.layers:
        size += layer.attention_norm.nbytes + layer.mlp_norm.nbytes
        for each in (layer.qkv, layer.attention_out, layer.mlp.gate_up, layer.mlp.down):
            matrices[id(each)] = each
    return size + sum(part.weight.nbytes for each in matrices.values() for part in each.parts)


@pytest.mark.parametrize("math", ["int8", "float32"])
def test_weights_count_as_they_are_packed(tmp_path: Path, math: Any) -> None:
    """Panels are filled up to 16 outputs, which is a lot for a model as small as this."""
    path = write_gguf(
        tmp_path / "m.gguf", random_weights(), type_of=lambda _: GGMLQuantizationType.Q4_0
    )
    spec = read_spec(path)
    found = packed_size(EngineConfig(cpu_math=math), spec)
    assert found.math == math
    keep = {"Q4_0"} if math == "int8" else set()
    kernels = make_kernels() if keep else TorchKernels()
    taken = bytes_of(pack_weights(spec, load_weights(spec, lambda _: None, keep=keep), kernels))
    assert found.size <= taken <= 1.3 * found.size


def test_auto_is_float32_where_there_is_nothing_to_keep(tmp_path: Path) -> None:
    auto = EngineConfig(cpu_math="auto")
    for path in (
        write_folder(tmp_path / "m", random_weights()),
        write_gguf(tmp_path / "m.gguf", random_weights()),
    ):
        spec = read_spec(path)
        assert packed_size(auto, spec) == PackedSize("float32", weight_bytes(spec))


def test_torch_computes_in_float32_only(tmp_path: Path) -> None:
    path = write_gguf(
        tmp_path / "m.gguf", random_weights(), type_of=lambda _: GGMLQuantizationType.Q4_0
    )
    torch = EngineConfig(cpu_math="auto", kernels="torch")
    assert packed_size(torch, read_spec(path)).math == "float32"
    with pytest.raises(ConfigError, match=r"no C\+\+ kernels"):
        packed_size(torch.model_copy(update={"cpu_math": "int8"}), read_spec(path))
