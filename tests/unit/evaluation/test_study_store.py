from pathlib import Path

import pytest

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.study_registry import register, standing
from chairlift.evaluation.study_store import Entry, ResultFolder
from support.studies import PLAN, finished_study, small_plan, small_run, small_runs, write_plan


def begun(folder: Path) -> ResultFolder:
    plan = write_plan(folder)
    register(plan)
    store = ResultFolder(folder / "result")
    store.begin(plan.read_bytes(), Entry(standing(plan), None, 6), {"seeds": {"plan": 1}})
    return store


def test_runs_come_back_as_they_were_to_the_last_bit(tmp_path: Path) -> None:
    store, runs = begun(tmp_path), small_runs(small_plan(), 2)
    for run in runs:
        store.add(run)
    result = store.read()
    assert list(result.runs) == runs
    assert result.plan == small_plan()
    assert result.manifest == {"seeds": {"plan": 1}}
    assert result.entry.standing == standing(tmp_path / "small.yaml")


@pytest.mark.parametrize("kept", [1, 40, -1])
def test_a_run_that_was_cut_off_spoils_no_other(tmp_path: Path, kept: int) -> None:
    store = begun(tmp_path)
    store.add(small_run("static"))
    file = store.path / "runs.jsonl.gz"
    whole = file.stat().st_size
    store.add(small_run("continuous"))
    content = file.read_bytes()
    file.write_bytes(content[: kept if kept < 0 else whole + kept])
    assert [run.arm for run in store.read().runs] == ["static"]
    store.go_on(None)
    store.add(small_run("continuous", 3))
    assert [(run.arm, run.round) for run in store.read().runs] == [("static", 0), ("continuous", 3)]


def test_damage_in_the_middle_is_no_cut(tmp_path: Path) -> None:
    store = begun(tmp_path)
    for run in small_runs(small_plan(), 1):
        store.add(run)
    file = store.path / "runs.jsonl.gz"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        store.read()


def test_a_folder_without_a_study_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no result"):
        ResultFolder(tmp_path).read()


def test_what_was_announced_leaves_no_doubt(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    register(plan)
    assert finished_study(tmp_path / "result", plan).read().doubts == ()


def test_plans_that_are_not_registered_or_changed_make_a_result_exploratory(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    assert finished_study(tmp_path / "a", plan).read().doubts == ("the plan is not registered",)
    register(plan)
    write_plan(tmp_path, PLAN.replace("seed: 1", "seed: 2").replace("at_least: 1.2", "at_least: 1"))
    assert finished_study(tmp_path / "b", plan).read().doubts == (
        "the plan is changed since it was registered",
    )


def test_more_rounds_than_announced_leave_a_doubt_whatever_was_asked_last(tmp_path: Path) -> None:
    store = begun(tmp_path)
    store.add(small_run("static", 7))
    store.go_on(6)
    assert store.read().doubts == ("8 rounds were asked for, the plan says 6",)
