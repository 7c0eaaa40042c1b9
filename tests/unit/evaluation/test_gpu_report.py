"""The whole report on a CPU: every section, within its time, and what it leaves out."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from chairlift.evaluation import gpu_clock, gpu_models, gpu_peer, gpu_report, gpu_sections
from chairlift.evaluation.gpu_clock import Clock, Deadline
from chairlift.evaluation.gpu_findings import Section
from chairlift.evaluation.gpu_models import SMALL_SHAPES, Variant, make_model
from chairlift.evaluation.gpu_peer import Requests, beside_peer
from chairlift.evaluation.gpu_report import main
from chairlift.evaluation.gpu_sections import SMALL
from chairlift.evaluation.gpu_steps import _chunk

_SMALL = ["--device", "cpu", "--small"]
_CPU = torch.device("cpu")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what takes long: other processes, and the peer's library."""
    for module in (gpu_models, gpu_report):
        monkeypatch.setattr(module, "interprets", lambda: False)
    monkeypatch.setattr(gpu_sections, "Clock", partial(Clock, groups=2))
    monkeypatch.setattr(gpu_clock, "_GROUP_S", 0.0)
    monkeypatch.setattr(gpu_sections, "check_kernels", lambda *_: Section("kernel checks"))
    monkeypatch.setattr(gpu_sections, "check_exactness", lambda *_: Section("exactness"))
    monkeypatch.setattr(gpu_peer, "_peer", lambda *_: 100.0)
    tiny = replace(SMALL, copied_bytes=1 << 12, requests=Requests(3, (2, 9), 4))
    monkeypatch.setattr(gpu_report, "SMALL", tiny)


def test_every_section_is_there(
    tmp_path: Path, quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.json"
    assert main([*_SMALL, "--budget-s", "900", "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert [section["name"] for section in report["sections"]] == [
        "ceilings",
        "kernel checks",
        "exactness",
        *(
            f"{part} {name}"
            for name in SMALL.shapes
            for part in ("decode", "prompt", "peer", "attention")
        ),
    ]
    found = {section["name"]: section["rows"] for section in report["sections"]}
    for name in SMALL.shapes:
        shown = {
            (row["exact"], row["sequences"], row["context"]) for row in found[f"decode {name}"]
        }
        assert shown == {(exact, *each) for exact in (True, False) for each in SMALL.decoding}
        assert all(row["share of roofline"] > 0 for row in found[f"decode {name}"])
        assert all(row["share of matrix rate"] > 0 for row in found[f"prompt {name}"])
        for row in found[f"peer {name}"]:
            assert row["times the peer"] == pytest.approx(row["output tokens/s"] / 100)
        assert len(found[f"attention {name}"]) == 2 * len(SMALL.attention)
    assert {aim["verdict"] for aim in report["aims"]} == {"not measured"}
    said = capsys.readouterr().out
    assert "CUDA graphs: left out" in said and "torch:" in said


def test_what_there_is_no_time_for_is_named(
    quick: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*_SMALL, "--budget-s", "0.001"]) == 0
    said = capsys.readouterr().out
    for name in ("exactness", *(f"steps {each}" for each in SMALL.shapes)):
        assert f"{name}: left out, the time was up" in said


def test_a_section_that_breaks_takes_no_other_with_it(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> Section:
        raise RuntimeError("out of order\nand more")

    monkeypatch.setattr(gpu_sections, "check_exactness", broken)
    assert main([*_SMALL, "--budget-s", "900"]) == 1
    said = capsys.readouterr().out
    assert "exactness: FAULT: RuntimeError: out of order\n" in said
    assert "attention qwen3-0.6b" in said


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "--device cpu --small" in capsys.readouterr().err


def test_a_peer_that_fails_leaves_our_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    def peer(*_: object) -> float:
        raise ImportError("no transformers here")

    monkeypatch.setattr(gpu_models, "interprets", lambda: False)
    monkeypatch.setattr(gpu_peer, "_peer", peer)
    model = make_model("q", SMALL_SHAPES["qwen3-0.6b"], _CPU)
    free = [Variant(exact=False, graphs=False)]
    section = beside_peer(model, free, Requests(2, (2, 5), 3), Deadline.after(60), {})
    assert section.notes == ["the peer did not run: ImportError: no transformers here"]
    assert section.rows[0]["output tokens/s"] and section.rows[0]["times the peer"] is None


@pytest.mark.slow
def test_the_peer_computes_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setattr(gpu_models, "interprets", lambda: False)
    for config in SMALL_SHAPES.values():
        model = make_model("m", config, _CPU)
        peer = gpu_peer._build(model, transformers)
        runner = model.open_runner(Variant(exact=False, graphs=False), 8)
        with torch.inference_mode():
            expected = peer(torch.full((1, 32), 3)).logits[0, -1:]
        assert torch.allclose(runner.logits(_chunk(0, 32)), expected, atol=1e-4)
        rate = gpu_peer._peer(model, [(3, 4, 5), (6, 7)], 3, SMALL.peer_settings)
        assert rate > 0


def test_a_clock_measures_at_least_once_when_the_time_is_up() -> None:
    calls: list[int] = []
    times = Clock(_CPU).time(lambda: calls.append(1), Deadline.after(-1))
    assert len(calls) >= 2
    assert 0 < times.least <= times.median <= times.most
