from pathlib import Path

import orjson
import pytest

from chairlift.deployments.cli import main
from chairlift.evaluation.study_loop import places
from chairlift.evaluation.study_store import ResultFolder
from support.studies import PLAN, SmallTarget, small_plan, write_plan


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> SmallTarget:
    return stand_in(monkeypatch, SmallTarget())


def stand_in(monkeypatch: pytest.MonkeyPatch, target: SmallTarget) -> SmallTarget:
    monkeypatch.setattr("chairlift.evaluation.study_targets.open_target", target.open)
    monkeypatch.setattr("chairlift.evaluation.study_work.draw", lambda *_: ())
    return target


def evaluate(*words: object) -> int:
    return main(["evaluate", *map(str, words)])


def test_arms_change_places_from_round_to_round() -> None:
    assert [(number, arm) for number, _, arm in places(small_plan(), 3)] == [
        (0, "static"),
        (0, "continuous"),
        (1, "continuous"),
        (1, "static"),
        (2, "static"),
        (2, "continuous"),
    ]


def test_a_claim_that_holds_ends_with_0(
    tmp_path: Path, target: SmallTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(tmp_path)
    assert evaluate("register", plan) == 0
    assert evaluate("run", plan, "--out", tmp_path / "r") == 0
    assert len(target.made) == 12
    assert "The claim holds" in capsys.readouterr().out
    assert evaluate("verify", tmp_path / "r") == 0


def test_a_claim_that_is_false_ends_with_1(tmp_path: Path, target: SmallTarget) -> None:
    plan = write_plan(tmp_path, PLAN.replace("at_least: 1.2", "at_least: 3"))
    assert evaluate("run", plan, "--out", tmp_path / "r") == 1


def test_too_few_rounds_end_with_2(tmp_path: Path, target: SmallTarget) -> None:
    plan = write_plan(tmp_path)
    assert evaluate("run", plan, "--out", tmp_path / "r", "--rounds", 3) == 2
    assert "3 rounds were asked for" in (tmp_path / "r" / "report.md").read_text()


def test_a_study_that_was_cut_off_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = write_plan(tmp_path), tmp_path / "r"
    stand_in(monkeypatch, SmallTarget(fails_at=5))
    assert evaluate("run", plan, "--out", out) == 130
    assert len(ResultFolder(out).read().runs) == 5
    target = stand_in(monkeypatch, SmallTarget())
    assert evaluate("run", plan, "--out", out, "--resume") == 0
    assert [run.order for run in ResultFolder(out).read().runs] == list(range(12))
    assert target.made[0] == (2, "continuous")


def test_a_result_is_not_written_over(
    tmp_path: Path, target: SmallTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = write_plan(tmp_path), tmp_path / "r"
    evaluate("run", plan, "--out", out, "--rounds", 1)
    assert evaluate("run", plan, "--out", out) == 2
    assert "--resume" in capsys.readouterr().err


def test_another_plan_cannot_go_on(
    tmp_path: Path, target: SmallTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, out = write_plan(tmp_path), tmp_path / "r"
    evaluate("run", plan, "--out", out, "--rounds", 1)
    write_plan(tmp_path, PLAN.replace("seats: 4", "seats: 8"))
    assert evaluate("run", plan, "--out", out, "--resume") == 2
    assert "another plan" in capsys.readouterr().err


def test_the_second_look_into_a_sealed_set_is_exploratory(
    tmp_path: Path, target: SmallTarget
) -> None:
    trace = tmp_path / "sealed.csv"
    trace.write_text("arrivals\n")
    source = '{kind: drawn, rate: 20, prompt: "constant:8", output: "uniform:2,40"}'
    sha256 = "a8d7ebbb22b5dd2f2cb8e2ee9b8f5d2cbb1a9c6d9ab7a1f0c5f2e4ffd1a3d0e0"
    sealed = f"{{kind: trace, file: sealed.csv, sha256: {sha256}, sealed: true}}"
    text = PLAN.replace(source, sealed)
    assert text != PLAN
    from chairlift.evaluation.study_files import sha256_of

    plan = write_plan(tmp_path, text.replace(sha256, sha256_of(trace)))
    evaluate("register", plan)
    assert evaluate("run", plan, "--out", tmp_path / "open") == 2  # all of it is sealed
    for name in ("first", "second"):
        assert evaluate("confirm", plan, "--sealed", trace, "--out", tmp_path / name) == 0
    doubts = [ResultFolder(tmp_path / name).read().doubts for name in ("first", "second")]
    assert doubts[0] == ()
    assert "opened before" in doubts[1][0]


def test_differences_of_two_results_are_named(
    tmp_path: Path, target: SmallTarget, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(tmp_path)
    evaluate("run", plan, "--out", tmp_path / "a", "--rounds", 1)
    write_plan(tmp_path, PLAN.replace("rounds: 6", "rounds: 1"))
    evaluate("run", plan, "--out", tmp_path / "b")
    capsys.readouterr()
    assert evaluate("diff", tmp_path / "a", tmp_path / "b") == 1
    assert "plan.rounds: 6 → 1" in capsys.readouterr().out


def test_the_time_of_a_plan_ends_a_study_between_rounds(
    tmp_path: Path, target: SmallTarget
) -> None:
    plan = write_plan(tmp_path, PLAN + "stop: {wall_s: 1.0e-9}\n")
    assert evaluate("run", plan, "--out", tmp_path / "r") == 2
    assert target.made == []
    tree = orjson.loads((tmp_path / "r" / "judgement.json").read_bytes())
    assert tree["judgement"]["state"] == "not_enough"


def test_an_unknown_measure_is_refused_before_a_plan_is_fixed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = write_plan(tmp_path, PLAN.replace("slowdown_p95", "happiness"))
    assert evaluate("register", plan) == 2
    assert "happiness" in capsys.readouterr().err
    assert not (tmp_path / "small.registered.json").exists()
