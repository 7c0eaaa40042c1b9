"""The autoscaling study as a command, and what it makes of a course."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chairlift.evaluation.autoscaling_study import main
from chairlift.evaluation.fleet_plot import draw
from chairlift.evaluation.fleet_report import DEFAULT, FIXED, OURS, Point, findings, table


def point(arm: str, on_time: int, hours: float) -> Point:
    return Point(
        scale="3 replicas",
        arm=arm,
        asked=1000,
        on_time=on_time,
        refused=0,
        share_on_time=on_time / 1000,
        goodput=1.0,
        replica_hours=hours,
        mean_replicas=hours,
        first_token_p50_s=0.5,
        first_token_p99_s=2.0,
        moved=0,
        sizes=((0.0, 1, 1), (60.0, 2, 3)),
        load=((0.0, 1.0), (60.0, 0.0)),
    )


def test_a_short_course_is_played_with_all_arms(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    figures, sheet = tmp_path / "f.json", tmp_path / "s.svg"
    main(["--most", "3", "--minutes", "0.9", "--json", str(figures), "--svg", str(sheet)])
    found = json.loads(figures.read_text())
    arms = found["figures"]["arms"]
    assert [each["arm"] for each in arms][:2] == [FIXED, DEFAULT]
    assert len({each["asked"] for each in arms}) == 1 < arms[0]["asked"]
    assert len(found["claims"]) == 4
    assert len(ElementTree.parse(sheet).findall(".//{*}polyline")) > 4
    assert "| 3 replicas | fixed |" in capsys.readouterr().out


def test_it_is_held_against_the_fixed_maximum_and_serves_default():
    points = [point(FIXED, 990, 3.0), point(DEFAULT, 950, 2.0), point(OURS, 970, 1.7)]
    report = findings(points, {})
    assert report.holds
    assert not findings([*points[:2], point(OURS, 940, 1.7)], {}).holds
    assert not findings([*points[:2], point(OURS, 970, 1.9)], {}).holds
    assert table(points).count("\n") == 4
    assert draw(points).startswith("<svg xmlns=")


def test_a_folder_without_the_trace_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["--traces", str(tmp_path)]) == 1
    assert "azure_code_tuning.csv" in capsys.readouterr().err
