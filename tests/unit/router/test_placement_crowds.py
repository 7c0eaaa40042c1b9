"""Placement among many replicas, of which few are looked at."""

import random
from collections import Counter

from chairlift.cluster.protocol import LoadReport
from chairlift.router.placement import Need, Placement, ReplicaView
from support.engines import replica_info

STALE = 5.0
SEATS = 4
SMALL = Need(10, 1, 20)


def view(name: str, *, age: float = 0.1, ready: bool = True, **facts: int) -> ReplicaView:
    """A replica with four seats."""
    own = {each: facts.pop(each) for each in list(facts) if each in ReplicaView.__slots__}
    return ReplicaView(name, ready, replica_info(), LoadReport(**facts), age, **own)


def placement(policy: str = "prefix-aware") -> Placement:
    return Placement(policy, look_ahead=2, stale_after_s=STALE, random=random.Random(1))


def chosen(*views: ReplicaView, policy: str = "prefix-aware") -> set[str | None]:
    """Whatever the rule picks, over many draws."""
    rule = placement(policy)
    return {rule.pick(views, SMALL, lambda _: 0) for _ in range(50)}


def crowd(number: int, **facts) -> list[ReplicaView]:
    return [view(f"replica-{index:03d}", **facts) for index in range(number)]


def test_of_a_hundred_the_one_with_a_free_seat_is_found():
    views = crowd(100, running=SEATS, waiting=6)
    views[71] = view("replica-071", running=SEATS - 1)
    assert chosen(*views) == chosen(*views, policy="least-loaded") == {"replica-071"}
    assert chosen(*crowd(100, running=SEATS, waiting=6)) == {None}


def test_of_a_hundred_one_that_is_nearly_the_least_loaded_is_chosen():
    views = [view(f"replica-{index:03d}", running=index % 4) for index in range(100)]
    for policy in ("prefix-aware", "least-loaded"):
        names = chosen(*views, policy=policy)
        assert {int(str(name)[-3:]) % 4 for name in names} == {0}
        assert len(names) > 5


def test_of_a_hundred_the_one_that_holds_the_prefix_is_found():
    hits = {"replica-042": 30, "replica-043": 2}
    rule = placement()
    need = Need(512, 1, 600, names=tuple(range(32)))
    views = crowd(100)
    picks = Counter(rule.pick(views, need, lambda name: hits.get(name, 0)) for _ in range(50))
    assert picks["replica-042"] == 50


def test_only_those_are_looked_at_that_can_be_given_something():
    rule = placement()
    full, free, line = (
        view("full", running=SEATS, waiting=6),
        view("free", running=1),
        view("line", running=SEATS, waiting=5),
    )
    others = view("gone", ready=False), view("old", age=STALE + 1, open_sequences=SEATS)
    assert rule.open_to_some([full, free, line, *others]) == [free, line]
    assert rule.open_to_some([view("full", running=1), free]) == [view("full", running=1), free]
    assert rule.open_to_some([free]) == [free]
