from __future__ import annotations

from pathlib import Path

import pytest

from chairlift.evaluation.sweep_points import Point, SweepReport, places_within

pytest.importorskip("matplotlib", reason="comes with the extra `plots`")


def test_each_sweep_becomes_a_file_that_names_its_axes_and_lines(tmp_path: Path) -> None:
    from chairlift.evaluation.sweep_plots import write_plots

    points = [
        Point(kind, place, 0.001 * place.changed)
        for kind in ("int8", "float32")
        for place in places_within(8192)
    ]
    report = SweepReport({}, tuple(points))
    write_plots(report, tmp_path / "plots")
    drawn = {path.name: path.read_text() for path in (tmp_path / "plots").iterdir()}
    assert sorted(drawn) == ["context.svg", "prompt.svg", "streams.svg"]
    assert "tokens/s, all streams" in drawn["streams.svg"]
    assert "float32, 8 streams" in drawn["context.svg"]
    assert "time to first token, s" in drawn["prompt.svg"]
    write_plots(report, tmp_path / "again")
    assert {path.name: path.read_text() for path in (tmp_path / "again").iterdir()} == drawn
