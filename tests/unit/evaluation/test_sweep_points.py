from __future__ import annotations

import io

from rich.console import Console

from chairlift.evaluation.sweep_points import Place, Point, SweepReport, places_within


def report() -> SweepReport:
    points = [
        Point(kind, place, seconds * slower)
        for kind, slower in (("int8", 1), ("float32", 4))
        for place, seconds in (
            (Place("streams", 1, 128), 0.005),
            (Place("streams", 32, 128), 0.04),
            (Place("context", 1, 4000), 0.01),
            (Place("context", 8, 4000), 0.05),
            (Place("prompt", 1, 1000), 0.5),
        )
    ]
    return SweepReport({"model": "m"}, tuple(points))


def text_of(report: SweepReport) -> str:
    out = io.StringIO()
    for table in report.tables():
        Console(file=out, width=200).print(table)
    return out.getvalue()


def test_a_sweep_changes_one_thing() -> None:
    places = places_within(8192)
    streams = [place for place in places if place.sweep == "streams"]
    assert [place.changed for place in streams] == [1, 2, 4, 8, 16, 32, 64]
    assert {place.tokens for place in streams} == {128}
    for number in (1, 8):
        contexts = [p for p in places if p.sweep == "context" and p.streams == number]
        assert [place.changed for place in contexts] == [128, 512, 2000, 4000, 8000]
    prompts = [place for place in places if place.sweep == "prompt"]
    assert {place.streams for place in prompts} == {1}
    assert (prompts[0].changed, prompts[-1].changed) == (16, 4000)


def test_a_context_is_reached_in_the_middle_of_the_output() -> None:
    place = Place("context", 8, 2000)
    assert place.prompt + place.output / 2 == 2000


def test_a_prompt_is_as_long_as_the_place_says() -> None:
    place = Place("prompt", 1, 16)
    assert (place.prompt, place.output) == (16, 1)


def test_places_that_the_model_has_no_room_for_are_left_out() -> None:
    places = places_within(2048)
    assert max(place.prompt + place.output for place in places) <= 2048
    assert [p.changed for p in places if p.sweep == "context" and p.streams == 8] == [
        128,
        512,
        2000,
    ]


def test_a_step_gives_each_stream_a_token_and_a_prompt_all_of_its_own() -> None:
    assert Point("int8", Place("streams", 32, 128), 0.04).tokens_per_s == 800
    assert Point("int8", Place("prompt", 1, 1000), 0.5).tokens_per_s == 2000


def test_lines_are_told_apart_by_kind_and_by_streams() -> None:
    assert list(report().lines("streams")) == ["int8", "float32"]
    assert list(report().lines("context")) == [
        "int8, 1 stream",
        "int8, 8 streams",
        "float32, 1 stream",
        "float32, 8 streams",
    ]


def test_each_sweep_has_a_table_of_rates_and_times() -> None:
    rows = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in text_of(report()).splitlines()
        if line.startswith("│")
    ]
    assert rows == [
        ["1", "200", "5.0", "50", "20.0"],
        ["32", "800", "40.0", "200", "160.0"],
        ["4,000", "100", "10.0", "160", "50.0", "25", "40.0", "40", "200.0"],
        ["1,000", "2000", "500.0", "500", "2000.0"],
    ]


def test_a_sweep_without_points_has_no_table() -> None:
    assert text_of(SweepReport({}, ())) == ""


def test_json_says_where_each_point_was_measured() -> None:
    written = report().as_json()
    assert written["about"] == {"model": "m"}
    points = written["points"]
    assert isinstance(points, list)
    assert points[1] == {
        "kind": "int8",
        "sweep": "streams",
        "streams": 32,
        "tokens": 128,
        "seconds": 0.04,
        "tokens_per_s": 800.0,
    }
