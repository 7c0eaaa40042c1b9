"""Incidents on real Ray: what the page on operations says shows them, and mends them."""

import shutil
from pathlib import Path

import pytest

from chairlift.evaluation.drill_incident import PAGE, IncidentSettings, run
from support.drills import broken

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]


def test_runbooks_mend_what_they_are_about() -> None:
    incidents = ("the Hub is killed", "a wrong configuration", "a key is over")
    report = run(IncidentSettings(only=incidents, replicas=1, routers=1))
    assert broken(report) == [], report.text()
    assert sum("steps that held" in claim.text for claim in report.claims) == len(incidents)


def test_a_runbook_that_lacks_a_step_fails_the_drill(tmp_path: Path) -> None:
    page, edit = tmp_path / "operations.md", '- $ENTRY/" $CONFIG\n'
    whole = PAGE.read_text("utf-8")
    assert whole.count(f"{edit}kill -HUP $SERVE\n") == 1
    page.write_text(whole.replace(f"{edit}kill -HUP $SERVE\n", edit), "utf-8")
    settings = IncidentSettings(
        only=("a key is over",), page=str(page), mended_s=5.0, replicas=1, routers=1
    )
    report = run(settings)
    assert not report.holds
    assert "expired_api_key" in str(report.figures) or "invalid_api_key" in str(report.figures)
