"""A file of packed weights gives back the same bits, and no damaged one is believed."""

from __future__ import annotations

import os
import pickle
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chairlift.cluster.model_spec import ExpertsSpec
from chairlift.kernels.interface import Experts
from chairlift.kernels.torch_kernels import TorchKernels
from chairlift.workers.decoder_weights import DecoderWeights, pack_weights
from chairlift.workers.packed_file import PackedFileDamaged, read_packed, write_packed
from support.llama_models import random_weights, tiny_spec

SPEC = tiny_spec(tied_embeddings=True, attention_bias=True)


def packed() -> DecoderWeights:
    return pack_weights(SPEC, random_weights(SPEC), TorchKernels())


def tensors(weights: DecoderWeights) -> Iterator[Tensor | None]:
    matrices = [weights.embedding, weights.head]
    for layer in weights.layers:
        matrices += [layer.qkv, layer.attention_out, layer.mlp.gate_up, layer.mlp.down]
        yield from (layer.attention_norm, layer.mlp_norm)
    for matrix in matrices:
        yield from (part.weight for part in matrix.parts)
        yield matrix.bias
    yield from (weights.norm, weights.rope_factors)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_packed(tmp_path / "w", packed())
    return tmp_path / "w"


@pytest.mark.parametrize("shared", [False, True])
def test_what_was_written_is_read(file: Path, shared: bool) -> None:
    expected, found = packed(), read_packed(file, shared=shared)
    assert found.head is found.embedding, "tied weights stay one"
    for before, after in zip(tensors(expected), tensors(found), strict=True):
        if before is None or after is None:
            assert before is after
        else:
            assert torch.equal(before, after) and before.dtype == after.dtype
            assert after.data_ptr() % 64 == 0


def test_bytes_and_an_untied_head_are_kept_too(tmp_path: Path) -> None:
    spec = tiny_spec(num_layers=0)
    weights = pack_weights(spec, random_weights(spec), TorchKernels())
    weights.embedding.parts[0].weight.view(torch.uint8)[:] = 7
    write_packed(tmp_path / "w", weights)
    found = read_packed(tmp_path / "w", shared=True)
    assert (found.embedding.parts[0].weight.view(torch.uint8) == 7).all()
    assert torch.equal(found.head.parts[0].weight, weights.head.parts[0].weight)


def test_experts_and_every_norm_are_kept(tmp_path: Path) -> None:
    experts = ExpertsSpec(count=2, per_token=1, intermediate_size=8, normalise=True)
    spec = tiny_spec(num_layers=1, experts=experts, qk_norm=True, post_norms=True)
    weights = pack_weights(spec, random_weights(spec), TorchKernels())
    write_packed(tmp_path / "w", weights)
    (before,), (after,) = weights.layers, read_packed(tmp_path / "w", shared=False).layers
    for name in ("query_norm", "key_norm", "attention_post_norm", "mlp_post_norm"):
        assert torch.equal(getattr(before, name), getattr(after, name))
    assert isinstance(before.mlp, Experts) and isinstance(after.mlp, Experts)
    assert (after.mlp.per_token, after.mlp.normalise) == (1, True)
    for one, other in zip(before.mlp.experts, after.mlp.experts, strict=True):
        assert torch.equal(one.down.parts[0].weight, other.down.parts[0].weight)
        assert one.activation == other.activation


def test_a_mapped_file_can_be_replaced_and_is_never_written_to(file: Path) -> None:
    found, before = read_packed(file, shared=True), file.read_bytes()
    found.norm.zero_()
    assert file.read_bytes() == before
    write_packed(file, packed())
    assert torch.equal(found.embedding.parts[0].weight, packed().embedding.parts[0].weight)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("size", [0, 10, 100, -1])
def test_a_file_that_is_cut_short_is_refused(file: Path, size: int, shared: bool) -> None:
    os.truncate(file, size if size >= 0 else file.stat().st_size + size)
    with pytest.raises(PackedFileDamaged):
        read_packed(file, shared=shared)


@pytest.mark.parametrize("at", [0, 8, 20, 30, 200])
def test_a_file_whose_begin_is_damaged_is_refused(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(PackedFileDamaged):
        read_packed(file, shared=False)


def test_nothing_but_weights_is_unpickled(file: Path) -> None:
    for value in (os.system, [1, 2]):
        index = pickle.dumps(value)
        size = 28 + len(index)
        head = struct.pack("<8sQQI", b"CHPACKED", size, len(index), zlib.crc32(index))
        file.write_bytes(head + index)
        with pytest.raises(PackedFileDamaged):
            read_packed(file, shared=False)


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_packed(tmp_path / "w", shared=True)


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int, _from: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space"):
        write_packed(tmp_path / "w", packed())
    assert not list(tmp_path.iterdir())
