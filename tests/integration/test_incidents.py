"""Incidents on real Ray: what the page on operations says shows them, and mends them."""

import shutil

import pytest

from chairlift.evaluation.drill_incident import IncidentSettings, run
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
