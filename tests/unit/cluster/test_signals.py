import math
import pickle

import pytest

from chairlift.cluster.fairness_figures import BatchShape
from chairlift.cluster.guard_state import Reading, Readings, Signal
from chairlift.cluster.protocol import LoadReport
from chairlift.cluster.signals import SignalReader, SignalSettings
from chairlift.cluster.telemetry import ReplicaState, Tally
from chairlift.cluster.windows import Fold
from support.reports import T0, Router, series, served

SETTINGS = SignalSettings(first_token_target_s=1.0, shape=BatchShape(100, 100))


class Hub:
    """A Hub and one router that reports each second; ``now`` is where the next one begins."""

    def __init__(self) -> None:
        self.fold, self.reader, self.router = Fold(), SignalReader(SETTINGS), Router("one")
        self.now, self.known = T0, -1
        self.router.replicas = {
            "x": ReplicaState(LoadReport(running=1, blocks_total=10), 0.1, live=True, seats=10)
        }

    def second(self, *tallies: Tally, **tenants: Tally) -> Readings:
        """What is read after a second in which that was counted."""
        bucket = {series(): tally for tally in tallies}
        bucket |= {series(tenant): tally for tenant, tally in tenants.items()}
        self.router.count(self.now, bucket)
        self.now += 1
        self.known = self.fold.put(self.router.report(self.known), self.now)
        return self.reader.read(self.fold, self.now)

    def seconds(self, number: int, tally: Tally) -> Readings:
        for _ in range(number):
            found = self.second(tally)
        return found


def done(number: int = 1, placed_s: float = 1.0, met: int | None = None, **counts: float) -> Tally:
    """So many that came and finished."""
    tally = served(
        started=number,
        choices=number,
        finished=number,
        met=number if met is None else met,
        placed_s=number * placed_s,
        spent_s=number * placed_s,
        **counts,
    )
    for _ in range(number):
        tally.duration.add(placed_s)
        tally.queue_wait.add(1e-5)
    return tally


def waited(*waits_s: float) -> Tally:
    tally = served()
    for wait_s in waits_s:
        tally.queue_wait.add(wait_s)
    return tally


def test_without_routers_nothing_is_known():
    assert SignalReader(SETTINGS).read(Fold(), T0) == {}


def test_a_router_that_departed_says_nothing():
    hub = Hub()
    hub.second(done())
    assert hub.reader.read(hub.fold, hub.now + 11) == {}


def test_where_nothing_happens_all_that_is_known_is_calm():
    hub = Hub()
    found = hub.seconds(10, Tally())
    for signal in Signal:
        if signal not in (Signal.STEPS_LEFT, Signal.SLOW_STEPS, Signal.SATURATED_STEPS):
            assert found[signal] == Reading(0.0, found[signal].where)


def test_offered_load_is_what_comes_times_how_long_it_stays():
    hub = Hub()
    found = hub.seconds(20, done(20, placed_s=0.5))
    per_s = (400 - 2 * 20) / 20
    assert found[Signal.OFFERED_LOAD].value == pytest.approx(per_s * 0.5 / 10)


def test_a_sudden_load_counts_by_the_newest_seconds_and_a_lasting_one_by_more():
    hub = Hub()
    hub.seconds(15, done(20, placed_s=0.5))
    sudden = hub.seconds(5, done(80, placed_s=0.5))[Signal.OFFERED_LOAD].value
    assert sudden == pytest.approx((400 - 2 * 20) / 5 * 0.5 / 10)
    lasting = hub.seconds(5, done(20, placed_s=0.5))[Signal.OFFERED_LOAD].value
    assert lasting == pytest.approx((700 - 2 * math.sqrt(700)) / 20 * 0.5 / 10)


def test_what_is_refused_was_offered_too_and_choices_need_seats():
    hub = Hub()
    hub.seconds(20, done(20, placed_s=0.5))
    refused = served(started=20, choices=80, rejected=20)
    found = hub.seconds(5, refused)
    assert found[Signal.OFFERED_LOAD].value == pytest.approx((400 - 2 * 20) / 5 * 0.5 / 10)


def test_few_requests_are_no_load_and_none_that_ended_leave_it_unknown():
    hub = Hub()
    assert hub.second(served(started=4, choices=4))[Signal.OFFERED_LOAD].value == 0
    assert Signal.OFFERED_LOAD not in hub.second(served(started=40, choices=40))


def test_without_live_replicas_load_is_over_nothing():
    hub = Hub()
    hub.router.replicas = {}
    assert Signal.OFFERED_LOAD not in hub.seconds(20, done(20))


def standing(hub: Hub, *queued: int, sent: int = 3) -> Reading:
    """After seconds at whose ends so many wait."""
    for number in queued:
        hub.router.queued = {"a": number - 1, "b": 1} if number else {}
        hub.router.oldest_s = {"a": 0.5, "b": 2.0} if number else {}
        found = hub.second(waited(*[0.0] * sent))
    return found[Signal.QUEUE_DELAY]


def test_what_stands_in_the_queue_counts_in_seconds_of_what_is_sent_whoever_is_served_at_once():
    hub = Hub()
    assert standing(hub, 6, 9, 6, 12).value == pytest.approx(6 / 3)


def test_a_queue_that_was_empty_lately_does_not_stand():
    hub = Hub()
    assert standing(hub, 9, 9, 9, 0, 9, 9).value == 0
    assert standing(hub, 9, 9).value == pytest.approx(9 / 3)


def test_where_none_is_sent_the_age_of_the_oldest_counts():
    assert standing(Hub(), 2, 2, 2, sent=0) == Reading(2.0, "b")


def ages(hub: Hub, *ages_s: float) -> float:
    for age_s in ages_s:
        hub.router.oldest_s = {"a": age_s} if age_s else {}
        found = hub.second(Tally())
    return found[Signal.OLDEST_SLOPE].value


def test_the_age_of_the_oldest_may_grow_a_second_a_second():
    assert ages(Hub(), 0, 1, 2, 3, 4) == pytest.approx(1.0)
    assert ages(Hub(), 3, 3.5, 4, 4.5, 5) == pytest.approx(0.5)
    assert ages(Hub(), 9, 9, 9, 9, 9) == pytest.approx(0.0)


def test_little_age_has_no_slope():
    assert ages(Hub(), 0, 0.05, 0.1, 0.15, 0.25) == 0
    hub = Hub()
    ages(hub, 0, 2, 4)
    assert ages(hub, 0) == 0


def test_a_slope_of_two_points_is_not_known():
    hub = Hub()
    hub.router.oldest_s = {"a": 3.0}
    assert Signal.OLDEST_SLOPE not in hub.second(Tally())


def test_starvation_is_told_of_whom():
    hub = Hub()
    hub.router.queued, hub.router.oldest_s = {"a": 1, "b": 1}, {"a": 45.0, "b": 3.0}
    assert hub.second(Tally())[Signal.UNFAIRNESS] == Reading(1.5, "a")


def test_a_gap_in_the_service_of_two_who_wait_shows_within_ten_seconds():
    hub = Hub()
    for _ in range(12):
        found = hub.second(
            a=served(service=100.0, backlogged_s=1.0), b=served(service=10.0, backlogged_s=1.0)
        )
    assert found[Signal.UNFAIRNESS].value >= 900 / 400
    assert found[Signal.UNFAIRNESS].where == "b"


def slowed(times: float, **counts: float) -> Tally:
    tally = served(**counts)
    for _ in range(5):
        tally.slowdown.add(times)
    return tally


def test_a_tenant_that_is_slower_than_the_others_shows():
    hub = Hub()
    for _ in range(12):
        found = hub.second(a=slowed(1.0), b=slowed(1.0), c=slowed(8.0))
    assert found[Signal.UNFAIRNESS].value == pytest.approx(2.0, rel=0.03)
    assert found[Signal.UNFAIRNESS].where == "c"


def test_a_tenant_that_floods_is_slow_by_its_own_doing():
    hub = Hub()
    for _ in range(12):
        flood = slowed(50.0, service=100.0, backlogged_s=1.0)
        found = hub.second(a=slowed(1.0), b=slowed(1.0), c=flood)
    assert found[Signal.UNFAIRNESS].value == pytest.approx(0.25)


def test_a_few_slow_requests_are_no_unfairness():
    hub = Hub()
    for _ in range(3):
        found = hub.second(a=slowed(1.0), b=slowed(1.0), c=slowed(8.0))
    assert found[Signal.UNFAIRNESS].value == 0


def test_the_budget_burns_by_what_was_let_in_and_missed():
    hub = Hub()
    found = hub.seconds(70, done(10, met=9))  # ten times what may miss
    assert found[Signal.BURN_RATE].value == pytest.approx(10 / 14.4)
    found = hub.seconds(3600, done(10, met=9))
    assert found[Signal.BURN_RATE].value == pytest.approx(10 / 6)
    refused = served(started=100, rejected=50, cancelled=50)
    assert Hub().seconds(20, refused)[Signal.BURN_RATE].value == 0


def test_a_sudden_harm_shows_in_a_minute_and_is_over_soon_after_it_is():
    hub = Hub()
    hub.seconds(1200, done(3))
    assert hub.second(done(3))[Signal.BURN_RATE].value == 0
    found = hub.seconds(20, done(3, met=0))
    assert found[Signal.BURN_RATE].value > 1
    found = hub.seconds(13, done(3))
    assert found[Signal.BURN_RATE].value < 1


def test_a_burst_soon_after_the_start_is_over_when_its_minute_is():
    hub = Hub()
    hub.seconds(60, done(10))
    assert hub.seconds(30, done(10, met=0))[Signal.BURN_RATE].value > 1
    assert hub.seconds(90, done(10))[Signal.BURN_RATE].value < 0.8


def test_few_requests_burn_nothing():
    hub = Hub()
    assert hub.seconds(10, served(started=1, finished=1))[Signal.BURN_RATE].value == 0


def test_counts_that_do_not_balance_contradict():
    hub = Hub()
    hub.router.extra_open = 9
    found = hub.second(done(3))[Signal.CONTRADICTION]
    assert (found.value, found.where) == (1.0, "one")


def test_replicas_speak_through_their_routers():
    hub = Hub()
    for second in range(12):
        load = LoadReport(
            step=20 * second,
            stamp=second,
            running=4,
            blocks_used=9,
            blocks_total=10,
            steps_saturated=20 * second,
            step_s=2.0 * second,
            predicted_s=1.0 * second,
            tokens_computed=1000 * second,
            tokens_recomputed=200 * second,
            steps_left=12,
        )
        hub.router.replicas = {"x": ReplicaState(load, 0.1, live=True, seats=10, open_sequences=8)}
        found = hub.second(Tally())
    assert {
        signal: found[signal]
        for signal in (Signal.STEPS_LEFT, Signal.SATURATED_STEPS, Signal.SLOW_STEPS, Signal.KV_USE)
    } == {
        Signal.STEPS_LEFT: Reading(12, "x"),
        Signal.SATURATED_STEPS: Reading(1.0, "x"),
        Signal.SLOW_STEPS: Reading(2.0, "x"),
        Signal.KV_USE: Reading(0.9, "x"),
    }
    assert found[Signal.RECOMPUTATION] == Reading(pytest.approx(0.2), "x")
    assert found[Signal.CONTRADICTION] == Reading(0.5, "x")


def test_a_router_that_is_behind_is_not_waited_for():
    hub, slow = Hub(), Router("slow")
    slow.count(T0, {series(): Tally()})
    hub.fold.put(slow.report(), T0)
    hub.seconds(5, Tally())
    hub.fold.put(slow.report(), hub.now)  # it is there, but has closed no second since
    assert standing(hub, 12, 12, 12, 12).value == pytest.approx(12 / 3)


def test_reading_again_changes_nothing():
    hub = Hub()
    found = hub.seconds(10, done(20))
    assert hub.reader.read(hub.fold, hub.now) == found


def test_memory_is_bounded():
    hub, sizes = Hub(), []
    for number in range(12):
        hub.router.replicas = {
            f"x{number}-{each}": ReplicaState(LoadReport(step=number), 0.1, live=True, seats=4)
            for each in range(4)
        }
        hub.seconds(30, done(3))
        sizes.append(len(pickle.dumps(hub.reader)))
    assert sizes[-1] < 1.2 * sizes[4]
