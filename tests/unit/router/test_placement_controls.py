"""What the Guard's Controls change in where requests go."""

import random

from chairlift.cluster.protocol import LoadReport
from chairlift.router.placement import Need, Placement, ReplicaView, credits, has_place_in_line
from support.engines import replica_info

STALE = 5.0
SEATS = 4


def view(name: str, max_seats: int | None = None, age_s: float = 0.1, **load) -> ReplicaView:
    info = replica_info(max_sequences=SEATS)
    return ReplicaView(name, True, info, LoadReport(**load), age_s, max_seats=max_seats)


def test_seats_that_are_not_given_away_are_no_credits():
    capped = view("a", 2, running=1)
    assert (capped.seats, capped.free_seats, credits(capped, STALE)) == (2, 1, 1)
    too_many = view("a", 2, running=3)
    assert (too_many.free_seats, credits(too_many, STALE)) == (-1, 0)
    assert view("a", 100).seats == view("a").seats == SEATS


def test_the_share_of_an_unknown_replica_is_that_of_its_lowered_seats():
    assert credits(view("a", 2, age_s=STALE + 1.0, running=4), STALE) == 2


def test_the_line_is_no_longer_than_the_lowered_seats_allow():
    need = Need(10, 1, 20)
    for max_seats, expected in ((None, True), (2, False)):
        there = view("a", max_seats, running=SEATS, waiting=3)
        assert has_place_in_line(there, need, 1, STALE) == expected


def test_without_affinity_the_prefix_does_not_matter():
    views = view("busy", running=2, waiting_tokens=50), view("idle")
    rule = Placement("prefix-aware", look_ahead=2, stale_after_s=STALE, random=random.Random(1))
    for affinity, expected in ((True, "busy"), (False, "idle"), (True, "busy")):
        rule.affinity = affinity
        hits = {"busy": 100, "idle": 0}
        assert rule.pick(views, Need(400, 1, 420), hits.__getitem__) == expected
