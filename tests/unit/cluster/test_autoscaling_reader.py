"""What the policy goes by, measured from what routers tell the Hub."""

import math

import pytest

from chairlift.cluster.autoscaling import LoadReading
from chairlift.cluster.autoscaling_reader import LEARNED_S, LoadReader
from chairlift.cluster.protocol import LoadReport
from chairlift.cluster.telemetry import ReplicaState, Tally
from chairlift.cluster.windows import Fold
from support.reports import T0, Router, series, served


class Hub:
    """A Hub and a router that reports each second; its replica has ten seats."""

    def __init__(self) -> None:
        self.fold, self.reader, self.router = Fold(), LoadReader(), Router("one")
        self.now, self.known = T0, -1
        self.load = LoadReport(running=1, blocks_total=100)

    def second(self, tally: Tally, **load: int) -> LoadReading:
        """What is read after a second in which that was counted; ``load``: added to the report."""
        report = self.load
        self.load = report._replace(**{name: getattr(report, name) + load[name] for name in load})
        self.router.replicas = {"x": ReplicaState(self.load, 0.0, live=True, seats=10)}
        self.router.count(self.now, {series(): tally})
        self.now += 1
        self.known = self.fold.put(self.router.report(self.known), self.now)
        return self.reader.read(self.fold, 1, 0, self.now)

    def seconds(self, number: int, tally: Tally, **load: int) -> LoadReading:
        for _ in range(number):
            found = self.second(tally, **load)
        return found


def done(number: int, placed_s: float = 1.0, met: int | None = None, **counts: float) -> Tally:
    """So many that came and finished."""
    met = number if met is None else met
    each = {"choices": number, "finished": number, "met": met, "placed_s": number * placed_s}
    tally = served(started=number, **each, **counts)
    for _ in range(number):
        for sketch in (tally.duration, tally.first_token):
            sketch.add(placed_s)
    return tally


def test_without_routers_all_that_is_known_is_old():
    reading = LoadReader().read(Fold(), 2, 1, T0)
    assert (reading.ready, reading.starting, reading.age_s) == (2, 1, math.inf)


def test_what_comes_and_what_it_takes():
    hub = Hub()
    found = hub.seconds(
        30, done(10, placed_s=2.0, prompt_tokens=900, cached_tokens=100, output_tokens=200)
    )
    assert 8 < found.arrivals_per_s < 10, "less what may be chance"
    assert (found.slope, found.goodput) == (0.0, 1.0)
    assert (found.seat_s, found.room) == (pytest.approx(2.0), 10)
    assert found.sequence_tokens == pytest.approx(100)
    assert found.work_s == pytest.approx(0.2)
    assert found.age_s == 0.0


def test_the_pace_of_a_replica_is_known_once_it_had_more_to_do_than_it_could():
    hub = Hub()
    assert hub.seconds(10, done(1), step=20, tokens_computed=100).tokens_per_s is None
    found = hub.seconds(10, done(1), step=20, steps_saturated=20, tokens_computed=500)
    assert found.tokens_per_s == pytest.approx(500, rel=0.1)
    assert hub.seconds(60, done(1), step=20, tokens_computed=100).tokens_per_s == pytest.approx(
        500, rel=0.1
    )
    hub.now += int(LEARNED_S)
    assert hub.seconds(60, done(1), step=20, tokens_computed=100).tokens_per_s is None


def test_arrivals_rise_where_it_is_no_chance():
    hub = Hub()
    hub.seconds(20, done(1))
    assert hub.reader.read(hub.fold, 1, 0, hub.now).slope == 0.0
    found = hub.seconds(10, done(9))
    assert found.slope == pytest.approx((90 - 10 - 2 * math.sqrt(100)) / 100)


def test_what_waits_and_for_how_long():
    hub = Hub()
    hub.router.queued, hub.router.oldest_s = {"a": 4, "b": 2}, {"a": 0.7, "b": 1.2}
    hub.router.extra_open = 10
    found = hub.seconds(4, Tally())
    assert (found.waiting, found.running, found.oldest_s) == (6, 4, 1.2)
    assert found.queue_delay_s == 1.2, "as nothing is sent"
    sent = served()
    sent.queue_wait.add(0.1, 3)
    assert hub.seconds(4, sent).queue_delay_s == pytest.approx(2.0)


def test_goodput_counts_who_was_turned_away():
    hub = Hub()
    assert hub.second(done(5)).goodput is None, "they are too few"
    hub.seconds(20, done(6, met=3))
    assert hub.reader.read(hub.fold, 1, 0, hub.now).goodput == pytest.approx(0.5)
    assert hub.seconds(12, done(6, rejected=6)).goodput == pytest.approx(0.5)
