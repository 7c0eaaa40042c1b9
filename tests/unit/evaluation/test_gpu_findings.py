"""Aims are judged by what a service does by default, and nothing counts as met by mistake."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from chairlift.evaluation.gpu_findings import AIMS, Aim, GpuReport, Section

_AIM = Aim("fast", 0.7, "decode", {"sequences": 1}, "share")


def _section(*rows: tuple[int, bool, float | None]) -> Section:
    section = Section("decode")
    for sequences, exact, share in rows:
        section.add({"sequences": sequences, "exact": exact}, {"share": share})
    return section


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ([], "not measured"),
        ([(1, True, None)], "not measured"),
        ([(8, True, 0.9)], "not measured"),
        ([(1, True, 0.5), (1, True, 0.7)], "met"),
        ([(1, True, 0.5), (1, False, 0.6)], "missed"),
        ([(1, True, 0.5), (1, False, 0.9)], "met when free only"),
        ([(1, False, 0.9)], "met when free only"),
    ],
)
def test_an_aim_is_met_when_exact_figures_meet_it(
    rows: list[tuple[int, bool, float | None]], verdict: str
) -> None:
    assert _AIM.judge([_section(*rows)])["verdict"] == verdict


def test_sections_of_another_name_do_not_count() -> None:
    section = _section((1, True, 0.9))
    section.name = "prompt"
    assert _AIM.judge([section])["verdict"] == "not measured"


def test_figures_of_small_models_decide_nothing() -> None:
    aim = AIMS[0]
    section = Section(aim.section)
    section.add(aim.row, {"exact": True, aim.figure: 0.99})
    assert GpuReport({}, full=True, sections=[section]).aims[0]["verdict"] == "met"
    assert GpuReport({}, full=False, sections=[section]).aims[0]["verdict"] == "not measured"


def test_a_report_says_all_that_it_knows() -> None:
    section = _section((1, True, 0.5), (8, False, None))
    section.notes.append("32 sequences: left out")
    section.fault = "it broke"
    report = GpuReport({"device": "a card"}, full=True, sections=[section])
    assert not report.sound
    console = Console(width=120)
    with console.capture() as captured:
        report.show(console.print, console.print)
    said = captured.get()
    for part in ("a card", "50%", "–", "32 sequences: left out", "FAULT: it broke"):
        assert part in said
    kept = json.loads(json.dumps(report.json()))
    assert kept["sections"][0]["rows"][0] == {"sequences": 1, "exact": True, "share": 0.5}
    assert len(kept["aims"]) == len(AIMS)


def test_a_missed_aim_is_not_unsound() -> None:
    assert GpuReport({}, full=True, sections=[_section((1, True, 0.1))]).sound
