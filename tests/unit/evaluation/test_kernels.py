"""The bench of the linear layers, on a model of a few thousand weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from chairlift.evaluation.kernels import main
from support.cpp_kernels import make_kernels
from support.tiny_llama import HIDDEN, INNER, LAYERS, VOCAB, random_weights, write_gguf


def test_every_kind_and_shape_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    make_kernels()  # skips where they cannot be had
    model = write_gguf(
        tmp_path / "m.gguf", random_weights(), type_of=lambda _: GGMLQuantizationType.Q4_0
    )
    out = tmp_path / "figures.json"
    flags = ["--model", str(model), "--threads", "1", "--rounds", "1", "--rows", "1", "3"]
    assert main([*flags, "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert len(figures) == 3 * 6 * 2  # kernels, shapes and all of them, rows
    assert {figure["kernels"] for figure in figures} == {"int8", "float32", "torch"}
    assert all(figure["ms"] > 0 for figure in figures)
    weights = VOCAB * HIDDEN + LAYERS * (3 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)
    for figure in figures:
        if figure["shape"] == "all":
            operations = figure["gflops"] * figure["ms"] * 1e6
            assert operations == pytest.approx(2 * weights * figure["rows"])
    assert "int8" in capsys.readouterr().out


def test_a_model_that_is_not_there_is_named(capsys: pytest.CaptureFixture) -> None:
    assert main(["--model", "/nowhere.gguf"]) == 2
    assert "nowhere.gguf" in capsys.readouterr().err
