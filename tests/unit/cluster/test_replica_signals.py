import pickle

import pytest

from chairlift.cluster.protocol import ENDLESS, LoadReport
from chairlift.cluster.replica_signals import ReplicaSignals
from chairlift.cluster.telemetry import ReplicaState, Tally
from support.reports import T0, Router


class Replicas:
    """Their loads as one router tells them, twice a second."""

    def __init__(self, **loads: LoadReport) -> None:
        self.signals = ReplicaSignals()
        self.now = float(T0)
        self.loads = loads
        self.open: dict[str, int | None] = {}
        self.age_s = 0.1
        self.live = True
        self.seats: int | None = 8

    def look(self) -> None:
        router = Router("one")
        router.replicas = {
            name: ReplicaState(load, self.age_s, self.live, self.seats, self.open.get(name))
            for name, load in self.loads.items()
        }
        self.signals.observe([(router.report(), 0.0)], self.now)

    def run(self, seconds: float, name: str = "x", **per_s: float) -> None:
        """Let counters of a replica grow by so much a second."""
        for _ in range(round(2 * seconds)):
            load = self.loads[name]
            grown = {each: getattr(load, each) + by / 2 for each, by in per_s.items()}
            self.loads[name] = load._replace(stamp=load.stamp + 1, **grown)
            self.now += 0.5
            self.look()


BUSY = LoadReport(running=4, blocks_used=8, blocks_total=100)


def test_of_nothing_nothing_is_known():
    signals = Replicas().signals
    assert signals.steps_left() is signals.kv_use() is signals.saturated_steps() is None
    assert signals.slow_steps() is signals.recomputation({}) is signals.difference() is None
    assert signals.capacity() is None


def test_the_worst_replica_speaks():
    replicas = Replicas(x=BUSY._replace(steps_left=70), y=BUSY._replace(blocks_used=90))
    replicas.look()
    left, use = replicas.signals.steps_left(), replicas.signals.kv_use()
    assert (left.value, left.where) == (70, "x")
    assert (use.value, use.where) == (0.9, "y")


def test_a_cache_that_cannot_fill_is_calm():
    replicas = Replicas(x=BUSY)
    replicas.look()
    assert replicas.signals.steps_left().value == ENDLESS


@pytest.mark.parametrize(("age_s", "live"), [(3.5, True), (0.1, False)])
def test_an_old_report_or_one_of_a_replica_that_left_says_nothing(age_s: float, live: bool):
    replicas = Replicas(x=BUSY)
    replicas.age_s, replicas.live = age_s, live
    replicas.look()
    assert replicas.signals.kv_use() is replicas.signals.steps_left() is None


def test_the_newest_report_of_several_routers_counts():
    signals, reports = ReplicaSignals(), []
    for name, stamp, used in (("one", 7, 50), ("other", 6, 90)):
        router = Router(name)
        load = BUSY._replace(stamp=stamp, blocks_used=used)
        router.replicas = {"x": ReplicaState(load, 0.1, live=True)}
        reports.append((router.report(), 0.0))
    signals.observe(reports, T0)
    assert signals.kv_use().value == 0.5


def test_saturated_steps_are_a_share_of_the_last_seconds():
    replicas = Replicas(x=BUSY)
    replicas.run(30, step=20)
    assert replicas.signals.saturated_steps().value == 0
    replicas.run(5, step=20, steps_saturated=20)
    assert replicas.signals.saturated_steps().value == pytest.approx(0.5, abs=0.05)
    replicas.run(10, step=20, steps_saturated=20)
    assert replicas.signals.saturated_steps().value == 1


def test_slow_replicas_are_looked_at_for_longer():
    replicas = Replicas(x=BUSY)
    replicas.run(40, step=1, steps_saturated=1)
    assert replicas.signals.saturated_steps().value == 1
    replicas = Replicas(x=BUSY)
    replicas.run(10, step=1, steps_saturated=1)
    assert replicas.signals.saturated_steps() is None


def test_a_replica_without_work_is_calm_whatever_was_before():
    replicas = Replicas(x=BUSY)
    replicas.run(10, step=20, steps_saturated=20, step_s=1.0, predicted_s=0.2)
    assert replicas.signals.slow_steps().value == pytest.approx(5.0)
    replicas.loads["x"] = replicas.loads["x"]._replace(running=0)
    replicas.run(12)
    assert replicas.signals.saturated_steps().value == 0
    assert replicas.signals.slow_steps().value == 1


def test_steps_that_take_longer_than_they_should_show():
    replicas = Replicas(x=BUSY, y=BUSY)
    for _ in range(10):
        replicas.run(1, "x", step=20, step_s=0.9, predicted_s=0.9)
        replicas.run(1, "y", step=20, step_s=0.9, predicted_s=0.9)
    assert replicas.signals.slow_steps().value == pytest.approx(1.0)
    replicas.run(5, "y", step=8, step_s=0.9, predicted_s=0.3)
    found = replicas.signals.slow_steps()
    assert (found.value, found.where) == (pytest.approx(3.0), "y")


def test_a_step_that_does_not_end_shows_before_it_does():
    replicas = Replicas(x=BUSY)
    replicas.run(10, step=20, step_s=1.0, predicted_s=1.0)
    seen = []
    for age_s in (0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 10.0):
        replicas.loads["x"] = replicas.loads["x"]._replace(step_age_s=age_s)
        replicas.now = T0 + 10 + age_s
        replicas.look()
        seen.append(replicas.signals.slow_steps().value)
    assert seen == sorted(seen)
    assert seen[2] > 1.3
    assert seen[-1] > 5


def test_without_a_prediction_no_step_is_slow():
    replicas = Replicas(x=BUSY)
    replicas.run(10, step=20)
    assert replicas.signals.slow_steps() is None


def test_computing_again_shows_as_a_share():
    replicas = Replicas(x=BUSY)
    replicas.run(20, tokens_computed=100)
    assert replicas.signals.recomputation({}).value == 0
    replicas.run(10, tokens_computed=100, tokens_recomputed=30)
    assert replicas.signals.recomputation({}).value == pytest.approx(0.3)


def test_preemptions_show_as_a_share_of_the_sequences_that_were_there():
    replicas = Replicas(x=BUSY)
    replicas.run(20, tokens_computed=100)
    replicas.run(10, preemptions=1, tokens_computed=100)
    assert replicas.signals.recomputation({"x": Tally(started=16)}).value == pytest.approx(0.5)
    assert replicas.signals.recomputation({}).value == 0, "four sequences are too few"


def test_a_replica_that_starts_anew_has_no_past():
    replicas = Replicas(x=BUSY._replace(tokens_computed=10_000, preemptions=500))
    replicas.run(20, step=20, steps_saturated=20, tokens_computed=100, preemptions=5)
    replicas.loads["x"] = BUSY
    replicas.look()
    assert replicas.signals.recomputation({}).value == 0
    assert replicas.signals.saturated_steps() is None
    replicas.run(10, step=20)
    assert replicas.signals.saturated_steps().value == 0


def test_seats_are_all_there_is_where_sequences_are_small():
    replicas = Replicas(x=BUSY, y=BUSY)
    replicas.run(10, "x")
    assert replicas.signals.capacity() == 16


def test_large_sequences_leave_room_for_few():
    replicas = Replicas(x=BUSY._replace(running=4, blocks_used=80))
    replicas.look()
    assert replicas.signals.capacity() == 8, "not yet believed"
    replicas.run(10)
    assert replicas.signals.capacity() == 5


def test_where_seats_are_not_known_capacity_is_not():
    replicas = Replicas(x=BUSY)
    replicas.seats = None
    replicas.look()
    assert replicas.signals.capacity() is None


def test_time_without_a_seat_is_told_apart():
    replicas = Replicas(x=BUSY._replace(waiting=1))
    replicas.run(5)
    assert replicas.signals.seated_share() == pytest.approx(0.8)


def test_reports_and_counts_that_differ_for_a_moment_say_nothing():
    replicas = Replicas(x=BUSY)
    replicas.open["x"] = 4
    replicas.run(10)
    assert replicas.signals.difference().value == 0
    replicas.open["x"] = 40
    replicas.run(4)
    assert replicas.signals.difference().value == 0
    replicas.run(2)
    found = replicas.signals.difference()
    assert (found.value, found.where) == (0.9, "x")
    replicas.open["x"] = 4
    replicas.run(0.5)
    assert replicas.signals.difference().value == 0


@pytest.mark.parametrize(("count", "running"), [(None, 4), (0, 3)])
def test_too_little_is_no_contradiction(count: int | None, running: int):
    replicas = Replicas(x=BUSY._replace(running=running))
    replicas.open["x"] = count
    replicas.run(10)
    assert replicas.signals.difference().value == 0


def test_a_live_replica_that_says_nothing_new_contradicts_whatever_it_runs():
    replicas = Replicas(x=BUSY._replace(running=0))
    replicas.open["x"], replicas.age_s = 0, 3.5
    replicas.run(10)
    found = replicas.signals.difference()
    assert (found.value, found.where) == (1.0, "x")


def test_one_replica_is_not_outweighed_by_others():
    replicas = Replicas(w=BUSY, x=BUSY._replace(running=8), y=BUSY)
    replicas.open |= {"w": 4, "x": 2, "y": 4}
    replicas.run(10)
    found = replicas.signals.difference()
    assert (found.value, found.where) == (0.75, "x")


def test_a_replica_that_is_out_of_reach_contradicts_nothing():
    replicas = Replicas(x=BUSY)
    replicas.open["x"], replicas.live, replicas.age_s = 0, False, 9.0
    replicas.run(10)
    assert replicas.signals.difference().value == 0


def test_memory_is_bounded_whatever_comes_and_goes():
    replicas = Replicas()
    sizes = []
    for number in range(40):
        name = f"x{number}"
        replicas.loads = {name: BUSY}
        replicas.run(20, name, step=20)
        sizes.append(len(pickle.dumps(replicas.signals)))
    assert sizes[-1] < 1.2 * sizes[10]
    for _ in range(1000):
        replicas.now += 0.01
        replicas.look()
    assert len(pickle.dumps(replicas.signals)) < 3 * sizes[-1]
