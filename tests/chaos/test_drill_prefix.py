"""Shared prompts over several replicas on real Ray, small."""

from __future__ import annotations

import pytest

from chairlift.evaluation.drill_client import in_loop
from chairlift.evaluation.drill_prefix import PrefixSettings, conversations, drill
from chairlift.evaluation.drill_service import running_service

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]


def test_replicas_share_a_prompt_and_conversations_stay_where_they_are_cached() -> None:
    settings = PrefixSettings(requests=120, at_once=40, conversations=12, turns=4, replicas=2)
    with running_service(config=settings.config(settings.replicas)) as service:
        shared = in_loop(drill(service, settings))
        talked = in_loop(conversations(service, settings))
    assert shared.failed == talked.failed == 0
    assert min(shared.queries.values()) > 0
    assert shared.hit_rate > 0.5
    assert talked.hit_rate > settings.best_hit_rate / 3
