import hashlib
import json
from pathlib import Path

import pytest

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.study_plan import load_plan
from chairlift.evaluation.study_registry import State, open_sealed, part_of, register, standing
from support.studies import PLAN, write_plan

SEALED = """
  confirm:
    source: {{kind: trace, file: sealed.csv, sha256: {sha256}, sealed: true}}
    requests: 10
    limits: {{prompt: 64, output: 64}}
arms:"""
SEALED_THRESHOLD = """thresholds:
  - {name: sealed, workload: confirm, measure: completed, arm: continuous, at_least: 0.9}
"""


def sealed_plan(folder: Path) -> tuple[Path, Path]:
    """A plan with a sealed set, and the set."""
    trace = folder / "sealed.csv"
    trace.write_text("arrivals\n")
    workload = SEALED.format(sha256=hashlib.sha256(trace.read_bytes()).hexdigest())
    text = PLAN.replace("\narms:", workload, 1).replace("thresholds:\n", SEALED_THRESHOLD, 1)
    return write_plan(folder, text), trace


def test_a_registered_plan_is_told_from_one_that_is_not(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    assert standing(plan).state is State.NOT_REGISTERED
    made = register(plan)
    assert standing(plan).state is State.REGISTERED
    assert made.sha256 == hashlib.sha256(plan.read_bytes()).hexdigest()
    assert (tmp_path / "small.registered.json").exists()


def test_a_plan_is_registered_once(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    first = register(plan)
    write_plan(tmp_path, PLAN.replace("rounds: 6", "rounds: 7"))
    with pytest.raises(ConfigError, match=r"small\.registered\.json"):
        register(plan)
    assert standing(plan).registration == first


def test_a_plan_that_is_not_sound_is_not_registered(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, PLAN.replace("arm: continuous", "arm: dynamic"))
    with pytest.raises(ConfigError, match="no arm 'dynamic'"):
        register(plan)
    assert standing(plan).state is State.NOT_REGISTERED


def test_changed_fields_are_named(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    register(plan)
    write_plan(tmp_path, PLAN.replace("at_least: 1.2", "at_least: 1.1"))
    now = standing(plan)
    assert now.state is State.CHANGED
    assert now.changes == ("thresholds.0.at_least: 1.2 → 1.1",)


def test_a_change_of_the_wording_is_a_change(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    register(plan)
    write_plan(tmp_path, PLAN + "# it was always so\n")
    assert standing(plan).state is State.CHANGED


def test_a_registration_that_was_edited_is_found_out(tmp_path: Path) -> None:
    plan = write_plan(tmp_path)
    register(plan)
    file = tmp_path / "small.registered.json"
    tree = json.loads(file.read_text())
    tree["text"] = tree["text"].replace("rounds: 6", "rounds: 3")
    file.write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match="damaged"):
        standing(plan)


def test_a_plan_falls_into_an_open_and_a_sealed_part(tmp_path: Path) -> None:
    plan = load_plan(sealed_plan(tmp_path)[0])
    assert list(part_of(plan, sealed=True).workloads) == ["confirm"]
    assert [each.name for each in part_of(plan, sealed=False).thresholds] == ["faster", "fair"]


def test_a_plan_without_sealed_sets_has_nothing_to_confirm(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no threshold is about a sealed set"):
        part_of(load_plan(write_plan(tmp_path)), sealed=True)


def test_sealed_sets_are_opened_once(tmp_path: Path) -> None:
    plan_file, trace = sealed_plan(tmp_path)
    plan = part_of(load_plan(plan_file), sealed=True)
    register(plan_file)
    first = open_sealed(plan_file, plan, [trace])
    second = open_sealed(plan_file, plan, [trace])
    assert first.first
    assert not second.first
    assert second.at == first.at


def test_a_plan_that_is_not_registered_opens_nothing(tmp_path: Path) -> None:
    plan_file, trace = sealed_plan(tmp_path)
    plan = part_of(load_plan(plan_file), sealed=True)
    with pytest.raises(ConfigError, match="not registered"):
        open_sealed(plan_file, plan, [trace])
    assert not (tmp_path / "small.opened.json").exists()


def test_another_file_under_the_sealed_name_is_refused_and_nothing_used_up(tmp_path: Path) -> None:
    plan_file, trace = sealed_plan(tmp_path)
    plan = part_of(load_plan(plan_file), sealed=True)
    register(plan_file)
    trace.write_text("others\n")
    with pytest.raises(ConfigError, match="SHA-256"):
        open_sealed(plan_file, plan, [trace])
    with pytest.raises(ConfigError, match=r"sealed sets are sealed\.csv"):
        open_sealed(plan_file, plan, [plan_file])
    assert not (tmp_path / "small.opened.json").exists()
