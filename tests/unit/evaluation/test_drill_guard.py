"""What the Guard's drill makes of records and of what /guard said."""

from __future__ import annotations

import pytest

from chairlift.cluster.guard_policy import load_policy
from chairlift.evaluation.drill_guard import GuardSettings, Part, Seen, crossing_s, guard_file
from chairlift.evaluation.records import RequestRecord


def record(intended: float, first_s: float, failure: str | None = None) -> RequestRecord:
    first = intended + first_s
    chunks = () if failure else (first,)
    return RequestRecord(intended, intended, first + 1.0, 10, 10, chunks, 10, 10, failure)


def seen(at_s: float, rung: int, *moves: dict[str, object]) -> Seen:
    return Seen(at_s, rung, ("queue_delay",) if rung else (), moves)


def move(version: int, at: float, before: str, after: str, kind: str = "up") -> dict[str, object]:
    return {"version": version, "at": at, "before": before, "after": after, "kind": kind}


def test_p99_crosses_when_a_late_request_has_waited_for_the_target() -> None:
    quick = [record(i * 0.1, 0.2) for i in range(50)]
    assert crossing_s(quick, 1.0) is None
    assert crossing_s([*quick, record(4.0, 7.0)], 1.0) == pytest.approx(5.0)


def test_one_late_request_of_many_is_not_the_tail() -> None:
    quick = [record(i * 0.01, 0.2) for i in range(500)]
    assert crossing_s([*quick, record(4.0, 7.0)], 1.0) is None


def test_refused_requests_are_no_part_of_the_tail() -> None:
    quick = [record(i * 0.1, 0.2) for i in range(50)]
    assert crossing_s([*quick, record(4.0, 7.0, "status_429")], 1.0) is None


def test_moves_of_the_rung_are_told_once_and_in_order() -> None:
    up, down = move(4, 1010.0, "normal", "reserve"), move(6, 1030.0, "reserve", "normal", "down")
    early, adjusted = move(2, 990.0, "normal", "reserve"), move(5, 1020.0, "reserve", "reserve")
    part = Part(1000.0, {}, [seen(10.2, 5, early, up), seen(30.2, 0, up, adjusted, down)])
    assert part.moves == [up, down]
    assert part.first_up_s(0.0) == 10.0
    assert part.first_up_s(15.0) is None
    assert part.first_active_s(0.0) == 10.2


def test_the_drills_policy_is_the_shipped_one_with_a_shorter_leave_time() -> None:
    shipped = load_policy()
    with guard_file(4.0) as file:
        policy = load_policy(file)
    assert policy.ladder.leave_for_s == 4.0
    assert policy.signals == shipped.signals


def test_best_effort_is_of_the_lowest_class() -> None:
    settings = GuardSettings()
    with guard_file(4.0) as file:
        tenants = settings.config("off", file)["tenants"]
    assert isinstance(tenants, dict)
    assert {name: each.get("priority") for name, each in tenants.items()} == {
        "one": None,
        "two": None,
        "three": None,
        "nightly": "batch",
    }
