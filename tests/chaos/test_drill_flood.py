"""A flood on real Ray, small: the others are served as if it were not there, or nearly so."""

from __future__ import annotations

import pytest

from chairlift.evaluation.drill_client import in_loop
from chairlift.evaluation.drill_flood import FloodSettings, drill
from chairlift.evaluation.drill_report import Report
from chairlift.evaluation.drill_service import running_service
from support.drills import broken

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

ROUTERS = 2


def test_light_tenants_are_served_beside_a_flood_and_heavy_ones_share_alike() -> None:
    settings = FloodSettings(duration_s=12.0, seats=16, rate=1.5)
    report = Report("flood", {})
    with running_service(config=settings.config(ROUTERS, fair=True)) as service:
        in_loop(drill(service, settings, ROUTERS, report))
    assert broken(report) == []
    (gap,) = [claim for claim in report.claims if "service gap" in claim.text]
    assert gap.holds
