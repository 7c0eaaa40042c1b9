"""The drills on real Ray, small: what users were answered, whatever was done to the service."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chairlift.evaluation import drill_kill, drill_overload, drill_stop, drill_vanish
from chairlift.evaluation.drill_client import in_loop
from chairlift.evaluation.drill_service import Service, engine_section, running_service
from support.drills import broken

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

REPLICAS = 3


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    config = {"engine": engine_section(24, "128MiB", 40.0), "workers": {"replicas": REPLICAS}}
    with running_service(config=config) as running:
        yield running


def test_a_stopped_worker_changes_no_answer_and_is_used_again(service: Service) -> None:
    settings = drill_stop.StopSettings(
        requests=36, duration_s=3.0, stop_after_s=2.0, output_tokens=80
    )
    report = in_loop(drill_stop.drill(service, settings))
    assert broken(report) == []
    (used_again,) = [claim for claim in report.claims if "woken replica" in claim.text]
    assert used_again.holds


def test_killed_workers_change_no_answer(service: Service) -> None:
    settings = drill_kill.KillSettings(requests=90, duration_s=16.0, kill_every_s=6.0)
    report = in_loop(drill_kill.drill(service, settings))
    assert broken(report) == []
    assert report.figures["choices that moved"]["lost"] > 0  # type: ignore[index]  # figures are of many kinds


def test_clients_that_vanish_leave_nothing(service: Service) -> None:
    settings = drill_vanish.VanishSettings(clients=900, warm_up=300, at_once=100)
    assert broken(in_loop(drill_vanish.drill(service, settings))) == []


def test_an_overload_leaves_nothing_and_the_service_goes_on(service: Service) -> None:
    settings = drill_overload.OverloadSettings(
        phases=((0.5, 6.0), (2.0, 10.0), (0.5, 6.0)), measure_s=5.0, seats=24, deadline_s=4.0
    )
    assert broken(in_loop(drill_overload.drill(service, settings))) == []
