import gzip
from pathlib import Path

import pytest

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.study_store import ResultFolder
from chairlift.evaluation.study_verify import Found, diff, verify
from support.studies import PLAN, finished_study, write_plan


@pytest.fixture
def store(tmp_path: Path) -> ResultFolder:
    return finished_study(tmp_path / "result", write_plan(tmp_path))


def found(store: ResultFolder) -> dict[str, Found]:
    return {check.name: check.found for check in verify(store.path, None)}


def replace(file: Path, old: bytes, new: bytes) -> None:
    content = file.read_bytes()
    assert old in content
    file.write_bytes(content.replace(old, new, 1))


def test_a_result_that_nobody_touched_is_the_same(store: ResultFolder) -> None:
    assert set(found(store).values()) == {Found.SAME}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("plan.yaml", b"at_least: 1.2", b"at_least: 1.1"),
        ("manifest.json", b"chairlift", b"chairlifts"),
        ("registration.json", b"not registered", b"registered"),
    ],
)
def test_a_changed_byte_is_found(store: ResultFolder, file: str, old: bytes, new: bytes) -> None:
    replace(store.path / file, old, new)
    assert found(store)[f"file {file}"] is Found.DIFFERS


def test_a_verdict_that_was_turned_is_found(store: ResultFolder) -> None:
    replace(store.path / "judgement.json", b'"exit_code": 0', b'"exit_code": 1')
    checks = {check.name: check for check in verify(store.path, None)}
    assert checks["judgement"].found is Found.DIFFERS
    assert "exit_code: 1 → 0" in checks["judgement"].detail


def test_a_run_made_faster_afterwards_is_found(store: ResultFolder) -> None:
    file = store.path / "runs.jsonl.gz"
    lines = gzip.decompress(file.read_bytes()).splitlines(keepends=True)
    lines[0] = lines[0].replace(b'"seconds":', b'"seconds":1', 1)
    file.write_bytes(b"".join(map(gzip.compress, lines)))
    told = found(store)
    assert told["measures"] is told["judgement"] is told["file runs.jsonl.gz"] is Found.DIFFERS


def test_a_damaged_file_of_runs_cannot_be_read(store: ResultFolder) -> None:
    file = store.path / "runs.jsonl.gz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        verify(store.path, None)


def test_two_results_of_one_plan_have_the_same_inputs(tmp_path: Path, store: ResultFolder) -> None:
    other = finished_study(tmp_path / "other", tmp_path / "small.yaml")
    assert diff(store.path, other.path) == []


def test_what_changed_between_two_results_is_named(tmp_path: Path, store: ResultFolder) -> None:
    text = PLAN.replace("seats: 4", "seats: 5").replace("name: small", "name: small\nseed: 3")
    other = finished_study(tmp_path / "other", write_plan(tmp_path, text))
    told = {change.name: (change.before, change.after) for change in diff(store.path, other.path)}
    assert told.pop("plan.seats") == told.pop("configuration.replica.seats") == (4, 5)
    assert told.pop("plan.seed") == told.pop("seeds.plan") == (1, 3)
    assert list(told) == ["plan.sha256"]


def test_a_perplexity_that_is_another_here_is_told(store: ResultFolder) -> None:
    replace(store.path / "manifest.json", b'"quality": {}', b'"quality": {"perplexity": 31.5}')
    assert found(store)["quality"] is Found.OTHER_HERE
