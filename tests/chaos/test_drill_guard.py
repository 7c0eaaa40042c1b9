"""A burst on real Ray, small: the Guard answers it, comes down again, and nobody is forgotten."""

from __future__ import annotations

import pytest

from chairlift.evaluation.drill_client import in_loop
from chairlift.evaluation.drill_guard import GuardSettings, drill, guard_file
from chairlift.evaluation.drill_service import running_service

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

CAPACITY = 18.0
"""Requests a second, about: two replicas of 12 seats, 20 tokens a request, 60 ms a step."""


def test_a_burst_moves_the_ladder_up_and_afterwards_down_and_every_request_ends() -> None:
    settings = GuardSettings(phases=((0.6, 12.0), (2.5, 15.0), (0.3, 15.0)), leave_for_s=2.0)
    with (
        guard_file(settings.leave_for_s) as policy,
        running_service(config=settings.config("act", policy)) as service,
    ):
        part, claims = in_loop(drill(service, settings, CAPACITY))
    assert [claim.text for claim in claims if not claim.holds] == []
    kinds = [move["kind"] for move in part.moves]
    assert "up" in kinds and "down" in kinds
    assert part.moves[0]["before"] == "normal"
    assert part.moves[-1]["after"] == "normal"
    assert part.seen[-1].rung == 0
    assert all(move["signal"] and move["owner"] for move in part.moves)
