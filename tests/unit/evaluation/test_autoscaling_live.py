"""One load for all arms, and what each came to."""

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from chairlift.cluster.config import load_config
from chairlift.evaluation.autoscaling_arms import (
    ARMS,
    LiveSettings,
    config_of,
    course_of,
    live_load,
)
from chairlift.evaluation.autoscaling_plot import draw
from chairlift.evaluation.autoscaling_report import ArmRun, on_time, summary, table
from chairlift.evaluation.records import RequestRecord

SETTINGS = LiveSettings(faster=10.0, for_s=100.0, first_token_s=1.0, per_token_s=0.1)


def record(at_s: float, first_s: float, tokens: int = 2, **changes: object) -> RequestRecord:
    """Its tokens come a twentieth of a second apart."""
    chunks = tuple(at_s + first_s + 0.05 * token for token in range(tokens))
    made = RequestRecord(at_s, at_s, chunks[-1], 4, tokens, chunks, 4, tokens)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_course_is_the_traces_and_the_same_for_the_same_seed():
    course = course_of(None, 0)
    assert course == course_of(None, 0) != course_of(None, 1)
    assert len(course) == 5353
    assert 5 <= sum(30 <= each.at_s < 40 for each in course) <= 60


def test_a_part_is_played_faster_and_thinned_out():
    course = course_of(None, 0)
    load = live_load(course, SETTINGS)
    part = [each for each in course if 180 <= each.at_s < 280]
    assert 0 < len(load) < 0.2 * len(part)
    assert all(0 <= each.at_s < 10 for each in load)
    whole = live_load(course, replace(SETTINGS, share=1.0, prompt_scale=1.0))
    assert [each.lengths for each in whole] == [each.lengths for each in part]


@pytest.mark.parametrize("arm", ARMS)
def test_each_arm_is_a_configuration(arm: str, tmp_path: Path):
    file = tmp_path / "c.json"  # which is YAML as well
    file.write_text(json.dumps(config_of(arm, SETTINGS)))
    workers = load_config(file, environment={}).workers
    assert workers.most == 3
    assert workers.least == (3 if arm == "fixed" else 1)


def test_on_time_is_both_targets_and_an_end():
    assert on_time(record(3.0, 0.9), SETTINGS)
    assert not on_time(record(3.0, 1.1), SETTINGS)
    assert not on_time(record(3.0, 0.9, ended=9.0), SETTINGS)
    assert not on_time(record(3.0, 0.9, failure="cut_stream"), SETTINGS)


def test_replicas_are_paid_for_while_they_are_there():
    records = (record(1.0, 0.5), record(2.0, 2.0))
    fixed = ArmRun("fixed", records[:1] * 2, ((0.0, 3), (5.0, 3)))
    ours = ArmRun("work", records, ((0.0, 1), (4.0, 3), (6.0, 1), (60.0, 1)))
    found = summary([fixed, ours], SETTINGS)
    work = found["arms"]["work"]
    assert work["replica_hours"] == pytest.approx((4 * 1 + 2 * 3 + 4 * 1) / 3600)
    assert work["mean_replicas"] == pytest.approx(1.4)
    assert (work["goodput_per_s"], work["goodput_per_s_share"]) == (0.1, 0.5)
    assert work["replica_hours_share"] == pytest.approx(14 / 30)
    assert "work" in table(found) and "46.7%" in table(found)
    assert summary([ours], SETTINGS)["arms"]["work"]["goodput_per_s_share"] is None


def test_the_plot_is_a_picture_that_stands_for_itself(tmp_path: Path):
    run = ArmRun("work", (record(1.0, 0.5),), ((0.0, 1), (4.0, 2)))
    file = tmp_path / "plots" / "live.svg"
    draw(summary([run], SETTINGS), file)
    root = ElementTree.fromstring(file.read_text())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "work: 100.0% on time" in file.read_text()
