"""A worker is killed in the middle of requests, on real Ray: nobody notices."""

import pytest

from chairlift.evaluation.drill_kill import KillSettings, run
from support.drills import broken

pytestmark = pytest.mark.timeout(400)


def test_a_killed_worker_changes_no_answer() -> None:
    report = run(
        KillSettings(requests=30, duration_s=5.0, kill_every_s=2.0, output_tokens=40, replicas=2)
    )
    assert broken(report) == []
    assert report.figures["choices that moved"]["lost"] > 0  # type: ignore[index]  # figures are of many kinds
