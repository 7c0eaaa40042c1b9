"""The checks within the report: what they find, and that they end in time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chairlift.evaluation import gpu_models
from chairlift.evaluation.gpu_checks import (
    _count,
    _study,
    _Timely,
    check_exactness,
    check_kernels,
)
from chairlift.evaluation.gpu_clock import Deadline
from chairlift.evaluation.gpu_findings import Section
from chairlift.evaluation.gpu_models import SMALL_SHAPES, Variant, make_model
from chairlift.workers.sequence import StepPlan, StepResult
from support.cpp_kernels import make_kernels
from support.scored_fake import ScoredFake


@pytest.mark.parametrize(
    ("printed", "status", "counts", "is_fault"),
    [
        ("..\n2 passed in 0.1s", 0, {"passed": 2}, False),
        (".s\n1 passed, 1 skipped in 0.1s", 0, {"passed": 1, "skipped": 1}, False),
        ("s\n1 skipped in 0.1s", 0, {"skipped": 1}, False),
        ("FAILED a\n1 failed, 3 passed in 2s", 1, {"failed": 1, "passed": 3}, True),
        ("FAILED a\n1 failed, 3 passed in 2s", None, {"failed": 1, "passed": 3}, True),
        ("ERROR a\n2 errors in 2s", 2, {"errors": 2}, True),
        ("no tests ran in 0.1s", 5, {}, False),
        ("Segmentation fault", -11, {}, True),
        ("...... [ 40%]", None, {}, False),
        ("2 passed in 9s", None, {"passed": 2}, False),
        ("", 1, {}, True),
    ],
)
def test_what_tests_say_is_understood(
    printed: str, status: int | None, counts: dict[str, int], is_fault: bool
) -> None:
    section = Section("kernel checks")
    _count(section, ["-m", "gpu"], printed.encode(), status)
    assert section.rows == [{"tests": "-m gpu", **counts}]
    assert (section.fault is not None) == is_fault
    assert is_fault or bool(section.notes) == ("passed" not in counts)


def test_tests_are_run_in_the_repository(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("def test_a(): pass\ndef test_b(): assert 0\n")
    section = check_kernels(tmp_path, ["tests"], Deadline.after(150))
    assert section.rows == [{"tests": "tests", "passed": 1, "failed": 1}]
    assert section.fault and "test_b" in section.notes[0]


def test_tests_that_take_too_long_are_ended(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("import time\ntime.sleep(1000)\n")
    section = check_kernels(tmp_path, ["tests"], Deadline.after(0))
    assert "the time was up" in section.notes[0] and section.fault is None


def test_without_tests_none_are_run(tmp_path: Path) -> None:
    section = check_kernels(tmp_path, ["tests"], Deadline.after(60))
    assert "no tests" in section.notes[0] and section.fault is None


def test_whole_studies_count_until_the_time_is_up() -> None:
    fake = ScoredFake(company_matters=True)
    assert _study(_Timely(fake, Deadline.after(0)), 1000).runs == 0
    found = _study(_Timely(fake, Deadline.after(3)), 1000)
    assert found.runs > 0 and found.runs % 10 == 0
    assert found.differing_logprobs > 0 and not found.exact


def test_a_step_that_fails_is_told() -> None:
    class Broken:
        def advance(self, plan: StepPlan) -> StepResult:
            raise OSError("no device")

    with pytest.raises(RuntimeError, match="no device"):
        _study(_Timely(Broken(), Deadline.after(60)), 1000)


def test_a_model_that_promises_to_be_exact_is_held_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    make_kernels()  # skips where they cannot be had
    monkeypatch.setattr(gpu_models, "interprets", lambda: False)
    model = make_model("q", SMALL_SHAPES["qwen3-0.6b"], torch.device("cpu"))
    section = check_exactness(model, [Variant(exact=True, graphs=False)], Deadline.after(4))
    assert section.fault is None
    for row in section.rows:  # none on a machine that is too busy
        assert row["promised"] is True
        assert row["differing tokens"] == row["differing logprobs"] == 0
