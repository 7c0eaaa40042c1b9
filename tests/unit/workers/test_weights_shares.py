"""Each rank reads its part of every tensor, and together these are the model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType

from chairlift.cluster.model_files import read_spec, resolve_model, weight_shapes
from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.quantised import Matrix, Quantised
from chairlift.workers.shards import cut_of, share_of
from chairlift.workers.weights import load_weights
from support.tiny_llama import random_weights, write_folder, write_gguf

EVERY = frozenset({"Q4_1", "Q5_0", "Q8_0", "Q4_0"})


def part_of(spec: ModelSpec, rank: int, size: int, keep: frozenset[str]) -> dict[str, Matrix]:
    share = share_of(spec, rank, size)
    return load_weights(spec, lambda _done: None, keep=keep, share=share)


def joined(spec: ModelSpec, size: int, keep: frozenset[str]) -> dict[str, Matrix]:
    """What the ranks have, put together again."""
    parts = [part_of(spec, rank, size, keep) for rank in range(size)]
    shares = [share_of(spec, rank, size) for rank in range(size)]
    whole: dict[str, Matrix] = {}
    for name in weight_shapes(spec):
        cuts = [cut_of(spec, share, name) for share in shares]
        # Of ranks that have the same KV head, one will do.
        pieces = [part[name] for index, part in enumerate(parts) if cuts[index] not in cuts[:index]]
        cut = cuts[0]
        if cut is None:
            whole[name] = pieces[0]
        elif isinstance(pieces[0], Quantised):
            blocks = [piece.blocks for piece in pieces]
            inputs = sum(piece.inputs for piece in pieces) if cut.axis else pieces[0].inputs
            whole[name] = Quantised(pieces[0].kind, torch.cat(blocks, cut.axis), inputs)
        else:
            whole[name] = torch.cat(pieces, cut.axis)
    return whole


def assert_equal(found: Mapping[str, Matrix], expected: Mapping[str, Matrix]) -> None:
    assert found.keys() == expected.keys()
    for name, matrix in expected.items():
        mine = found[name]
        if isinstance(matrix, Quantised):
            assert isinstance(mine, Quantised), name
            assert (mine.kind, mine.inputs) == (matrix.kind, matrix.inputs), name
            assert torch.equal(mine.blocks, matrix.blocks), name
        else:
            assert torch.equal(mine, matrix), name


@pytest.mark.parametrize(
    ("size", "keep"),
    [
        pytest.param(2, frozenset(), id="2-decoded"),
        pytest.param(3, EVERY, id="3-as it is"),
        *(
            pytest.param(size, keep, id=f"{size}-{name}", marks=pytest.mark.slow)
            for size, keep, name in (
                (2, EVERY, "as it is"),
                (3, frozenset(), "decoded"),
                (9, frozenset(), "decoded"),
                (9, EVERY, "as it is"),
            )
        ),
    ],
)
def test_the_embedded_models_parts_are_the_model(size: int, keep: frozenset[str]) -> None:
    spec = read_spec(resolve_model("smollm2"))
    whole = load_weights(spec, lambda _done: None, keep=keep)
    assert_equal(joined(spec, size, keep), whole)


def test_a_folders_parts_are_the_model(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", random_weights(attention_bias=True), attention_bias=True)
    spec = read_spec(folder)
    assert_equal(joined(spec, 2, frozenset()), load_weights(spec, lambda _done: None))


def test_a_cut_within_a_quantised_block_is_decoded(tmp_path: Path) -> None:
    """Two heads of 8 are half a block of 32, so the output projection cannot stay as it is."""
    path = write_gguf(
        tmp_path / "m.gguf", random_weights(), type_of=lambda name: GGMLQuantizationType.Q8_0
    )
    spec = read_spec(path)
    output = "model.layers.0.self_attn.o_proj.weight"
    whole = load_weights(spec, lambda _done: None)[output]
    parts = [part_of(spec, rank, 2, EVERY)[output] for rank in range(2)]
    assert not any(isinstance(part, Quantised) for part in parts)
    assert torch.equal(torch.cat(parts, 1), whole)


def test_a_rank_reads_little_more_than_its_part() -> None:
    spec = read_spec(resolve_model("smollm2"))
    whole = sum(each.numel() for each in load_weights(spec, lambda _done: None).values())
    for rank in range(3):
        part = part_of(spec, rank, 3, frozenset())
        assert sum(each.numel() for each in part.values()) < 0.34 * whole
