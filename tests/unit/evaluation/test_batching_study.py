from __future__ import annotations

import pytest

from chairlift.evaluation.batching_study import main


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (["--model", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--output-lengths", "long"], "output lengths 'long'"),
        (["--output-lengths", "constant:1000000"], "longer than the model's"),
    ],
)
def test_a_study_that_cannot_start_is_one_line(
    flags: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(flags) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and complaint in captured.err
