"""The machine's bench on a model of a few thousand weights, beside a scripted service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from chairlift.evaluation import loads, machine_bench, machine_ceilings
from chairlift.evaluation.machine_bench import main
from support.cpp_kernels import make_kernels
from support.openai_server import ScriptedServer, serving
from support.tiny_llama import VOCAB, random_weights, write_gguf


@dataclass
class Scripted:
    url: str


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Flags of the services that were started; loads and products are small."""
    flags_seen: list[tuple[str, ...]] = []

    @contextmanager
    def running_service(*flags: str) -> Iterator[Scripted]:
        flags_seen.append(flags)
        with serving(ScriptedServer()) as url:
            yield Scripted(url)

    shapes = {
        name: loads._Shape(requests=4, prompt="constant:4", output="constant:6", in_flight=seats)
        for name, seats in (("a", 2), ("b", 1), ("c", 4))
    }
    monkeypatch.setattr(loads, "_CLOSED", shapes)
    monkeypatch.setattr(loads, "_VOCAB_SIZE", VOCAB)
    monkeypatch.setattr(machine_bench, "running_service", running_service)
    monkeypatch.setattr(machine_ceilings, "_READ_SHAPE", (64, 64))
    monkeypatch.setattr(machine_ceilings, "_SIDE", 64)
    return flags_seen


def test_all_layers_are_measured_and_compared(
    tmp_path: Path, started: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    make_kernels()  # skips where they cannot be had
    model = write_gguf(
        tmp_path / "m.gguf", random_weights(), type_of=lambda _: GGMLQuantizationType.Q4_0
    )
    out = tmp_path / "figures.json"
    flags = ["--model", str(model), "--threads", "1", "--rounds", "2", "--json", str(out)]
    assert main(flags) == 0
    assert [each[-1] for each in started] == ["int8", "float32"]
    report = json.loads(out.read_text())
    assert all(value > 0 for value in report["ceilings"].values())
    assert [(turn["kind"], turn["load"]) for turn in report["turns"]] == [
        (kind, load) for kind in ("int8", "float32") for load in ("a", "a", "b", "b", "c", "c")
    ]
    for turn in report["turns"]:
        assert turn["service"]["output_tokens"] == 4 * 6
        assert turn["engine"]["output_tokens_per_s"] > 0
        assert turn["engine"]["decode_tokens_per_s"] > 0
    output = capsys.readouterr().out
    assert "int8: output tokens/s" in output
    assert "float32: output tokens/s" in output


def test_a_model_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", "/nowhere.gguf"]) == 2
    assert "nowhere.gguf" in capsys.readouterr().err
