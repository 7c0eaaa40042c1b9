from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from chairlift.cluster.errors import ModelError
from chairlift.cluster.model_files import read_spec
from chairlift.workers.weights import load_weights
from support.tiny_llama import random_weights, write_folder

INDEX = "model.safetensors.index.json"


def load(folder: Path) -> dict[str, torch.Tensor]:
    return load_weights(read_spec(folder), lambda share: None)


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_of_each_size_become_float32_exactly(tmp_path: Path, dtype: torch.dtype) -> None:
    stored = {name: tensor.to(dtype) for name, tensor in random_weights().items()}
    found = load(write_folder(tmp_path, stored))
    for name, tensor in stored.items():
        assert torch.equal(found[name], tensor.to(torch.float32)), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.float8_e4m3fn])
def test_another_type_is_named(tmp_path: Path, dtype: torch.dtype) -> None:
    weights = random_weights()
    weights["model.norm.weight"] = weights["model.norm.weight"].to(dtype)
    assert "'model.norm.weight' has the type" in refusal(write_folder(tmp_path, weights))


@pytest.mark.parametrize("shards", [2, 5])
def test_shards_load_like_one_file(tmp_path: Path, shards: int) -> None:
    weights = random_weights()
    found = load(write_folder(tmp_path, weights, shards=shards))
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())


def test_old_frequency_buffers_are_left_out(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    assert name not in load(write_folder(tmp_path, random_weights() | {name: torch.ones(4)}))


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, random_weights(), shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    message = refusal(folder)
    assert "model-00002-of-00003.safetensors is missing" in message


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, random_weights(), shards=2)
    save_file({"other": torch.ones(1)}, folder / "model-00001-of-00002.safetensors")
    message = refusal(folder)
    assert "model-00001-of-00002.safetensors lacks the tensor" in message


def test_a_folder_without_safetensors_says_so(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, random_weights())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "neither model.safetensors nor" in refusal(folder)


@pytest.mark.parametrize(
    "index",
    [
        "{",
        "[]",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": {"a": 7}}',
        '{"weight_map": {"a": "../m.safetensors"}}',
        '{"weight_map": {"a": "/m.safetensors"}}',
        '{"weight_map": {"a": ""}}',
        '{"weight_map": {"a": ".."}}',
    ],
)
def test_a_damaged_index_is_named(tmp_path: Path, index: str) -> None:
    folder = write_folder(tmp_path, random_weights(), shards=2)
    (folder / INDEX).write_text(index)
    assert INDEX in refusal(folder)


def shorten(data: bytes) -> bytes:
    return data[:-1]


def keep_nothing(data: bytes) -> bytes:
    return b""


def claim_a_huge_header(data: bytes) -> bytes:
    return (1 << 62).to_bytes(8, "little") + data[8:]


def break_the_header(data: bytes) -> bytes:
    return data[:8] + b"!" + data[9:]


@pytest.mark.parametrize(
    "damage",
    [shorten, keep_nothing, claim_a_huge_header, break_the_header],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_damaged_file_is_named(
    tmp_path: Path, damage: Callable[[bytes], bytes], shards: int
) -> None:
    folder = write_folder(tmp_path, random_weights(), shards=shards)
    file = "model.safetensors" if shards == 1 else "model-00002-of-00002.safetensors"
    (folder / file).write_bytes(damage((folder / file).read_bytes()))
    message = refusal(folder)
    assert file in message
    assert "download it again" in message


def test_the_whole_file_is_preferred_to_shards(tmp_path: Path) -> None:
    """As in transformers; an index without its shards may lie about."""
    weights = random_weights()
    folder = write_folder(tmp_path, weights)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "missing.safetensors"}}))
    assert load(folder).keys() == weights.keys()
