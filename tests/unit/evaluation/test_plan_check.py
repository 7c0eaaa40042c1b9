"""The check of capacity planning, on a model of a few thousand weights."""

import json
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from chairlift.cluster.capacity import Step
from chairlift.cluster.capacity_devices import DEVICES, efficiencies
from chairlift.cluster.capacity_model import given_figures
from chairlift.evaluation import machine_ceilings, plan_check
from chairlift.evaluation.plan_check import Predictor, main, predict
from chairlift.evaluation.sweep_points import Place
from support.cpp_kernels import make_kernels
from support.tiny_llama import random_weights, write_gguf


def test_a_prompt_is_predicted_in_chunks_and_decoding_by_its_streams():
    model = given_figures(1e9, "bfloat16", (10, 8, 2, 64), 2.0)
    device = DEVICES["l4"]
    predictor = Predictor(model, device, efficiencies(device))
    assert predict(predictor, Place("streams", 8, 128)) == predictor.seconds(Step(8, 128))
    of_two = predict(predictor, Place("prompt", 1, 1000))
    assert of_two == predictor.seconds(Step(0, 0, 500, 1000), 2)
    assert of_two[0] < of_two[1] < of_two[2]


def test_everything_is_predicted_measured_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_kernels()  # skips where they cannot be had
    monkeypatch.setattr(machine_ceilings, "_READ_SHAPE", (64, 64))
    monkeypatch.setattr(machine_ceilings, "_SIDE", 64)
    monkeypatch.setattr(plan_check, "_LOAD_PROMPT", 16)
    monkeypatch.setattr(plan_check, "_LOAD_OUTPUT", 8)
    model = write_gguf(
        tmp_path / "m.gguf", random_weights(), type_of=lambda _: GGMLQuantizationType.Q4_0
    )
    out = tmp_path / "figures.json"
    flags = ["--model", str(model), "--threads", "1", "--rounds", "1", "--seats", "2"]
    assert main([*flags, "--math", "int8", "--json", str(out)]) == 0
    assert "predicted and measured, int8" in capsys.readouterr().out
    rows = json.loads(out.read_text())["int8"]
    # Of the points, those that its context of 128 tokens has room for.
    assert [row["what"].split(",")[0] for row in rows] == [
        "prompt of 64",
        "full load of 2 seats",
    ]
    for row in rows:
        assert 0 < row["low"] <= row["expected"] <= row["high"]
        assert row["ratio"] == row["measured"] / row["expected"] > 0
