"""The sweep with runners that compute nothing, and on a model of a few thousand weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from chairlift.evaluation import sweep
from chairlift.evaluation.sweep import main, measure
from chairlift.evaluation.sweep_points import Place
from chairlift.workers.sequence import StepPlan, StepResult
from chairlift.workers.simulated_runner import SimulatedRunner
from support.cpp_kernels import make_kernels
from support.tiny_llama import CONTEXT, VOCAB, random_weights, write_gguf

PLACES = (Place("streams", 4, 64), Place("context", 2, 100), Place("prompt", 1, 40))


class RecordingRunner:
    """Notes the rows of each slice and where they start."""

    def __init__(self) -> None:
        self.steps: list[list[tuple[int, int]]] = []
        self._runner = SimulatedRunner(VOCAB, (), 0.0)

    def advance(self, plan: StepPlan) -> StepResult:
        self.steps.append([(piece.start, piece.count) for piece in plan.slices])
        return self._runner.advance(plan)


def test_every_place_is_measured() -> None:
    found = measure(SimulatedRunner(VOCAB, (), 0.0), PLACES, VOCAB, rounds=2)
    assert len(found) == len(PLACES)
    assert all(seconds > 0 for seconds in found)


def test_of_prompts_before_decoding_only_the_last_row_is_computed() -> None:
    runner = RecordingRunner()
    place = Place("context", 2, 100)
    measure(runner, [place], VOCAB, rounds=1)
    assert runner.steps == [[(start, 1)] * 2 for start in range(place.prompt - 1, 116)]


def test_a_prompt_that_is_measured_is_computed_in_full() -> None:
    runner = RecordingRunner()
    measure(runner, [Place("prompt", 1, 600)], VOCAB, rounds=1)
    assert runner.steps == [[(0, 512)], [(512, 88)]]


def test_every_block_is_written_once_before_anything_is_measured() -> None:
    written: list[int] = []

    class Filled:
        def advance(self, plan: StepPlan) -> StepResult:
            assert plan.num_tokens <= 512
            for piece in plan.slices:
                assert (piece.start, piece.count) == (0, 16)
                written.extend(piece.sequence.blocks)
            return StepResult(())

    sweep.fill(Filled(), 70, VOCAB)
    assert written == list(range(70))


def test_all_points_of_a_model_are_measured_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_kernels()  # skips where they cannot be had
    model = write_gguf(
        tmp_path / "m.gguf", random_weights(), type_of=lambda _: GGMLQuantizationType.Q4_0
    )
    out = tmp_path / "points.json"
    flags = ["--model", str(model), "--threads", "1", "--rounds", "1", "--json", str(out)]
    assert main(flags) == 0
    report = json.loads(out.read_text())
    assert report["about"]["date"]
    assert {point["kind"] for point in report["points"]} == {"int8", "float32"}
    assert all(point["tokens_per_s"] > 0 for point in report["points"])
    assert all(point["tokens"] < CONTEXT for point in report["points"])
    assert "one prompt, by its length" in capsys.readouterr().out


def test_a_model_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "/nowhere.gguf"]) == 2
    assert "nowhere.gguf" in capsys.readouterr().err


def test_plots_without_matplotlib_are_refused_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["--plots", "anywhere"]) == 2
    error = capsys.readouterr().err
    assert "matplotlib" in error
    assert error.count("\n") == 1
