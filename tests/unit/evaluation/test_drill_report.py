import json
from pathlib import Path

import pytest

from chairlift.evaluation.drill_report import Report, at_least, at_most, exactly


@pytest.mark.parametrize(
    ("claim", "holds"),
    [
        (exactly("lost", 0, 0), True),
        (exactly("lost", 1, 0), False),
        (at_most("seconds", 2.0, 2.0), True),
        (at_most("seconds", 2.1, 2.0), False),
        (at_most("seconds", float("inf"), 2.0), False),
        (at_least("share", 0.95, 0.95), True),
        (at_least("share", 0.9, 0.95), False),
        (at_most("seconds", None, 2.0), False),
    ],
)
def test_a_claim_holds_within_its_bound_and_not_unmeasured(claim, holds):
    assert claim.holds is holds


def test_a_report_holds_only_if_every_claim_does_and_shows_both_numbers(tmp_path: Path):
    report = Report("kill", {"requests": 5}, [exactly("lost", 0, 0)], {"moves": {"lost": 3.0}})
    assert report.holds
    assert "lost: 0 (wanted = 0)  holds" in report.text()
    report.claims.append(at_most("longest pause, s", 2.7182818, 2.0))
    assert not report.holds
    assert "longest pause, s: 2.718 (wanted ≤ 2)  DOES NOT HOLD" in report.text()
    assert "moves: lost 3" in report.text()
    file = tmp_path / "report.json"
    report.write(str(file))
    written = json.loads(file.read_text())
    assert (written["holds"], written["claims"][1]["measured"]) == (False, 2.7182818)
    assert written["figures"] == {"moves": {"lost": 3.0}}
