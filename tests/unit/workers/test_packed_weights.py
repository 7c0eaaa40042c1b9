"""Packed weights are made once, found again, and made anew when what they depend on has changed."""

from __future__ import annotations

import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType

from chairlift.cluster.errors import ModelError
from chairlift.cluster.model_files import read_spec
from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.torch_kernels import TorchKernels
from chairlift.workers import packed_weights
from chairlift.workers.decoder_weights import DecoderWeights
from chairlift.workers.packed_weights import PackedCache
from chairlift.workers.shards import share_of
from support.cpp_kernels import make_kernels
from support.tiny_llama import random_weights, write_folder, write_gguf


@pytest.fixture(autouse=True)
def packings(monkeypatch: pytest.MonkeyPatch) -> list[ModelSpec]:
    """The models that were read, in order; small ones are kept too."""
    read: list[ModelSpec] = []
    original = packed_weights.load_weights

    def load_weights(spec: ModelSpec, *arguments: Any, **options: Any) -> Any:
        read.append(spec)
        return original(spec, *arguments, **options)

    monkeypatch.setattr(packed_weights, "load_weights", load_weights)
    monkeypatch.setattr(packed_weights, "_SMALL", 0)
    return read


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    return write_model(tmp_path / "m.gguf")


def write_model(path: Path) -> ModelSpec:
    return read_spec(
        write_gguf(path, random_weights(), type_of=lambda _name: GGMLQuantizationType.Q8_0)
    )


def load(
    folder: Path,
    spec: ModelSpec,
    *,
    keep: Any = (),
    shared: bool = False,
    rank: int = 0,
    size: int = 1,
) -> DecoderWeights:
    kernels = make_kernels() if keep else TorchKernels()
    return PackedCache(folder).load(
        spec, kernels, set(keep), lambda _done: None, share_of(spec, rank, size), shared=shared
    )


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("keep", [(), ("Q8_0",)])
def test_the_second_start_packs_nothing(
    tmp_path: Path, spec: ModelSpec, packings: list[ModelSpec], keep: Any, shared: bool
) -> None:
    first, second = (load(tmp_path / "c", spec, keep=keep, shared=shared) for _ in range(2))
    assert packings == [spec]
    assert first.quantised is second.quantised is bool(keep)
    for before, after in zip(first.layers, second.layers, strict=True):
        assert torch.equal(before.qkv.parts[0].weight, after.qkv.parts[0].weight)
        assert before.qkv.parts[0].kind == after.qkv.parts[0].kind


def test_both_kinds_of_arithmetic_are_kept(
    tmp_path: Path, spec: ModelSpec, packings: list[ModelSpec]
) -> None:
    for keep in [(), ("Q8_0",), (), ("Q8_0",)]:
        load(tmp_path / "c", spec, keep=keep)
    assert len(packings) == 2


def test_each_rank_keeps_its_own_part(
    tmp_path: Path, spec: ModelSpec, packings: list[ModelSpec]
) -> None:
    parts = [load(tmp_path / "c", spec, rank=rank, size=2) for rank in (0, 1, 0, 1)]
    assert len(packings) == 2
    assert len(list((tmp_path / "c").iterdir())) == 2
    heads = [part.embedding.parts[0].weight for part in parts]
    assert torch.equal(heads[0], heads[2]) and not torch.equal(heads[0], heads[1])


def test_a_changed_model_replaces_its_file(
    tmp_path: Path, spec: ModelSpec, packings: list[ModelSpec]
) -> None:
    other = write_model(tmp_path / "other.gguf")
    load(tmp_path / "c", spec)
    load(tmp_path / "c", other)
    os.utime(spec.path, (1, 1))
    load(tmp_path / "c", spec)
    load(tmp_path / "c", other)
    assert packings == [spec, other, spec]
    assert len(list((tmp_path / "c").iterdir())) == 2


def test_changed_code_packs_again(
    tmp_path: Path, spec: ModelSpec, packings: list[ModelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    load(tmp_path / "c", spec)
    changed = tmp_path / "changed.py"
    changed.write_text("something else")
    monkeypatch.setattr(packed_weights, "_SOURCES", (*packed_weights._SOURCES[:-1], changed))
    load(tmp_path / "c", spec)
    assert len(packings) == 2


def test_the_code_is_that_which_packs() -> None:
    names = {source.name for source in packed_weights._SOURCES}
    assert names >= {"panels.py", "panels.h", "weights_gguf.py", "decoder_weights.py"}


def test_a_folder_of_safetensors_is_packed_once_too(
    tmp_path: Path, packings: list[ModelSpec]
) -> None:
    spec = read_spec(write_folder(tmp_path / "m", random_weights()))
    for _ in range(2):
        load(tmp_path / "c", spec)
    assert packings == [spec]


@pytest.mark.parametrize("shared", [False, True])
def test_a_damaged_file_is_made_anew_and_said(
    tmp_path: Path,
    spec: ModelSpec,
    packings: list[ModelSpec],
    caplog: pytest.LogCaptureFixture,
    shared: bool,
) -> None:
    load(tmp_path / "c", spec)
    (file,) = (tmp_path / "c").iterdir()
    os.truncate(file, 1000)
    with caplog.at_level(logging.WARNING):
        load(tmp_path / "c", spec, shared=shared)
    assert "packing weights again" in caplog.text
    load(tmp_path / "c", spec, shared=shared)
    assert len(packings) == 2


@pytest.mark.parametrize("shared", [False, True])
def test_where_nothing_can_be_kept_one_line_says_so(
    tmp_path: Path, spec: ModelSpec, caplog: pytest.LogCaptureFixture, shared: bool
) -> None:
    (tmp_path / "file").touch()  # no folder can be made below it
    with caplog.at_level(logging.WARNING):
        found = load(tmp_path / "file" / "c", spec, shared=shared)
    assert len(found.layers) == spec.num_layers
    (record,) = caplog.records
    assert "cannot keep packed weights" in record.getMessage()


def test_of_several_that_start_at_once_one_packs(
    tmp_path: Path, spec: ModelSpec, packings: list[ModelSpec]
) -> None:
    with ThreadPoolExecutor(4) as pool:
        started = [pool.submit(load, tmp_path / "c", spec, shared=True) for _ in range(4)]
        found = [each.result() for each in started]
    assert packings == [spec]
    norms = torch.stack([each.norm for each in found])
    assert (norms == norms[0]).all()


def test_what_nobody_has_used_for_long_goes(
    tmp_path: Path, spec: ModelSpec, packings: list[ModelSpec]
) -> None:
    other = write_model(tmp_path / "other.gguf")
    load(tmp_path / "c", other)
    (file,) = (tmp_path / "c").iterdir()
    left = tmp_path / "c" / "half written"
    left.touch()
    long_ago = time.time() - 40 * 24 * 3600
    for each in (file, left):
        os.utime(each, (long_ago, long_ago))
    load(tmp_path / "c", other)  # which is a use
    load(tmp_path / "c", spec)
    assert file.exists() and not left.exists()


def test_small_models_leave_no_files(
    tmp_path: Path, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_weights, "_SMALL", 1024**2)
    load(tmp_path / "c", spec)
    assert not (tmp_path / "c").exists()


def test_a_damaged_model_is_refused(tmp_path: Path, spec: ModelSpec) -> None:
    os.truncate(spec.path, spec.path.stat().st_size - 100)
    with pytest.raises(ModelError, match="download it again"):
        load(tmp_path / "c", spec)
