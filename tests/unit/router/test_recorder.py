"""What the recorder makes of requests whose course is known."""

import pytest

from chairlift.cluster.config import TelemetryConfig
from chairlift.cluster.protocol import LoadReport, Priority, Request, SamplingParams
from chairlift.cluster.sketch import ACCURACY
from chairlift.cluster.telemetry import OTHERS, Failure, Series, Tally
from chairlift.router.metrics import Outcome, RouterMetrics
from chairlift.router.placement import ReplicaView
from chairlift.router.recorder import Recorder, Reporter
from support.engines import replica_info

SETTINGS = TelemetryConfig(first_token_target_s=1.0, per_token_target_s=0.1, tenants=2)
CHAT = Series("acme", "standard", "≤128")


class Bench:
    """A recorder whose wall clock is set by hand."""

    def __init__(self, settings: TelemetryConfig = SETTINGS) -> None:
        self.wall = 1000.0
        self.metrics = RouterMetrics("m", lambda: [])
        self.recorder = Recorder(self.metrics, settings, lambda: self.wall)

    def start(self, tenant="acme", now=0.0, prompt=100, **facts):
        request = Request(
            "r", tuple(range(prompt)), SamplingParams(max_tokens=9), tenant=tenant, **facts
        )
        return self.recorder.start(request, now)

    def next_second(self) -> None:
        self.wall += 1.0
        self.recorder.tick({}, self.wall, 0.0)

    def totals(self) -> dict[Series, Tally]:
        self.next_second()
        return self.recorder.totals


class Waiting:
    """Implements the queue, of which it holds nothing."""

    def __init__(self, tickets=()) -> None:
        self.tickets = dict(tickets)

    def backlogged(self):
        return self.tickets

    def queued_of(self, tenant):
        return 3


class Ticket:
    def __init__(self, record, queued_at=0.0) -> None:
        self.flight = record  # it has the request
        self.queued_at = queued_at


def finish(record, *, first_at: float, gap_s: float, tokens: int, cached: int = 0) -> None:
    """One choice, whose tokens come one by one, each read at once."""
    record.sent(first_at / 2, "r0")
    record.first_token(first_at, cached)
    record.tokens(1, 0, first_at)
    for index in range(1, tokens):
        record.tokens(1, index, first_at + index * gap_s)
        record.next_tokens(1, gap_s)
    record.end(Outcome.FINISHED, "stop", first_at + (tokens - 1) * gap_s, [tokens])


def test_a_request_is_counted_once_in_each_way():
    bench = Bench()
    record = bench.start()
    finish(record, first_at=0.5, gap_s=0.05, tokens=11, cached=64)
    tally = bench.totals()[CHAT]
    assert (tally.started, tally.finished, tally.ended, tally.met) == (1, 1, 1, 1)
    assert (tally.prompt_tokens, tally.cached_tokens, tally.output_tokens) == (100, 64, 11)
    assert tally.on_time == 11
    for sketch, number, value in (
        (tally.first_token, 1, 0.5),
        (tally.queue_wait, 1, 0.25),
        (tally.duration, 1, 1.0),
        (tally.inter_token, 10, 0.05),
        (tally.slowdown, 1, 1.0),
    ):
        assert sketch.count == number
        assert sketch.quantile(0.5) == pytest.approx(value, rel=ACCURACY)


@pytest.mark.parametrize(
    ("first_at", "gap_s", "tokens", "met", "on_time"),
    [
        (0.99, 0.099, 5, True, 5),
        (1.01, 0.1, 5, False, 0),
        (0.5, 0.2, 8, False, 6),  # token i is due at 1 + 0.1 i and comes at 0.5 + 0.2 i
        (0.5, 0.101, 3, False, 3),
        (1.2, 0.05, 8, False, 4),  # it catches up with token 4
        (0.9, 0.0, 1, True, 1),
    ],
)
def test_each_token_has_its_deadline_and_the_request_two_targets(
    first_at, gap_s, tokens, met, on_time
):
    bench = Bench()
    finish(bench.start(), first_at=first_at, gap_s=gap_s, tokens=tokens)
    tally = bench.totals()[CHAT]
    assert (tally.met, tally.on_time) == (met, on_time)


def test_a_last_token_that_is_read_late_does_not_miss_the_pace_of_one():
    bench = Bench()
    record = bench.start()
    record.first_token(0.2, 0)
    record.tokens(1, 0, 0.2)
    record.end(Outcome.FINISHED, "stop", 0.3, [1])
    assert bench.totals()[CHAT].met == 1


def test_choices_have_deadlines_of_their_own_and_the_longest_sets_the_pace():
    bench = Bench()
    record = bench.start()
    record.first_token(0.9, 0)
    for index in range(3):
        for _ in range(2):
            record.tokens(1, index, 0.9 + index * 0.19)
    record.end(Outcome.FINISHED, "length", 1.28, [3, 3])
    tally = bench.totals()[CHAT]
    assert (tally.met, tally.output_tokens, tally.on_time) == (0, 6, 4)


def test_tokens_that_come_together_are_each_measured():
    bench = Bench()
    record = bench.start()
    record.first_token(1.35, 0)
    record.tokens(6, 0, 1.35)
    record.next_tokens(5, 0.1)
    tally = bench.totals()[CHAT]
    assert tally.on_time == 2  # those due at 1.4 and at 1.5
    assert tally.inter_token.count == 5
    assert tally.inter_token.quantile(0.5) == pytest.approx(0.02, rel=ACCURACY)


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.REJECTED, Outcome.FAILED])
def test_what_does_not_finish_counts_as_that_and_meets_nothing(outcome):
    bench = Bench()
    record = bench.start()
    record.first_token(0.1, 0)
    record.tokens(1, 0, 0.1)
    record.end(outcome, "x", 0.2, [1])
    tally = bench.totals()[CHAT]
    assert getattr(tally, outcome.value) == tally.ended == 1
    assert (tally.met, tally.duration.count, tally.slowdown.count) == (0, 0, 0)
    assert tally.on_time == 1


def test_only_the_first_way_to_a_replica_is_a_wait():
    bench = Bench()
    record = bench.start(now=10.0)
    record.sent(12.0, "r0")
    record.sent(15.0, "r1")
    wait = bench.totals()[CHAT].queue_wait
    assert wait.count == 1 and wait.quantile(0.5) == pytest.approx(2.0, rel=ACCURACY)


def test_service_that_is_given_back_is_never_told():
    bench = Bench()
    record = bench.start()
    record.charged(100.0)
    assert bench.totals()[CHAT].service == 0.0
    record.charged(-100.0)  # the replica refused it
    record.charged(100.0)
    record.charged(-64.0)  # cached
    record.charged(2.0)
    record.first_token(0.1, 64)
    assert bench.totals()[CHAT].service == 38.0
    record.charged(-30.0)
    assert bench.totals()[CHAT].service == 38.0
    record.charged(40.0)
    assert bench.totals()[CHAT].service == 48.0


def test_prompts_that_were_computed_for_nobody_are_charged_at_the_end():
    bench = Bench()
    record = bench.start()
    record.charged(100.0)
    record.end(Outcome.FAILED, "x", 1.0, [0])
    assert bench.totals()[CHAT].service == 100.0


def test_series_are_told_apart_by_tenant_class_and_length():
    bench = Bench()
    bench.start(prompt=129, priority=Priority.BATCH)
    bench.start("beta", prompt=128, priority=Priority.INTERACTIVE)
    assert set(bench.totals()) == {
        Series("acme", "batch", "≤512"),
        Series("beta", "interactive", "≤128"),
    }


def test_time_is_counted_of_all_that_end_and_at_replicas_of_what_finished():
    bench = Bench()
    finish(bench.start(n=3), first_at=0.5, gap_s=0.25, tokens=3)
    record = bench.start()
    record.sent(1.0, "r0")
    record.end(Outcome.CANCELLED, "abort", 3.0, [0])
    tally = bench.totals()[CHAT]
    assert (tally.started, tally.choices) == (2, 4)
    assert (tally.spent_s, tally.placed_s) == (1.0 + 3.0, 0.75)


def test_a_replica_has_what_was_sent_there_and_ended_there():
    bench = Bench()
    finish(bench.start(), first_at=0.5, gap_s=0.05, tokens=3)
    record = bench.start()
    record.sent(0.1, "r0")
    record.lost("r0")
    record.sent(0.3, "r1")
    record.first_token(0.4, 0)
    record.end(Outcome.FAILED, "x", 0.5, [1])
    bench.start().end(Outcome.REJECTED, "queue_full", 0.0, [0])
    lost = bench.start()
    lost.sent(0.1, "r1")
    lost.lost("r1")
    lost.end(Outcome.FAILED, "replica_lost", 0.5, [0])
    bench.next_second()
    places = bench.recorder.places.since(-1).seconds[1000]
    r0, r1 = places[Series("r0", "", "")], places[Series("r1", "", "")]
    assert (r0.started, r0.finished, r0.failed, r0.first_token.count) == (2, 1, 1, 1)
    assert (r1.started, r1.finished, r1.failed, r1.first_token.count) == (2, 0, 2, 1)
    assert len(places) == 2


def test_the_age_of_what_is_open_is_known_when_a_second_closes():
    bench = Bench()
    first, second = bench.start(now=1.0), bench.start(now=2.5)
    bench.wall += 1
    bench.recorder.tick({}, 3.0, 0.5)
    assert (bench.recorder.open, bench.recorder.open_age_s, bench.recorder.open_s) == (2, 2.5, 1.0)
    first.end(Outcome.CANCELLED, "abort", 3.5, [0])
    bench.recorder.tick({}, 3.75, 0.75)
    assert bench.recorder.open_age_s == 2.5, "the second is not over"
    bench.wall += 1
    bench.recorder.tick({}, 4.0, 0.25)
    assert (bench.recorder.open, bench.recorder.open_age_s, bench.recorder.open_s) == (1, 1.5, 2.0)
    second.end(Outcome.CANCELLED, "abort", 4.0, [0])
    bench.next_second()
    assert (bench.recorder.open, bench.recorder.open_age_s) == (0, 0.0)


def test_failures_are_told_once_their_second_is_over():
    bench = Bench()
    record = bench.start("beta")
    record.sent(0.1, "r0")
    record.end(Outcome.FAILED, "replica_lost", 0.5, [0])
    bench.start().end(Outcome.FINISHED, "stop", 0.5, [1])
    assert bench.recorder.failures(-1) == ()
    bench.next_second()
    bench.start().end(Outcome.REJECTED, "queue_full", 1.5, [0])
    failed = Failure(1000, "beta", "replica_lost", "r", "r0", rejected=False)
    assert bench.recorder.failures(-1) == (failed,)
    bench.next_second()
    turned_away = Failure(1001, "acme", "queue_full", "r", "", rejected=True)
    assert bench.recorder.failures(-1) == (failed, turned_away)
    assert bench.recorder.failures(1000) == (turned_away,)
    assert bench.recorder.reasons == {"replica_lost": 1, "queue_full": 1}


def test_failures_are_bounded_and_names_cut():
    bench = Bench()
    broken = bench.start("beta")
    broken.end(Outcome.FAILED, "x", 0.0, [0])
    for _ in range(100):
        request = Request("x" * 5000, (1,), SamplingParams(max_tokens=9))
        bench.recorder.start(request, 0.0).end(Outcome.REJECTED, "queue_full", 0.0, [0])
    bench.next_second()
    failures = bench.recorder.failures(-1)
    assert [each.tenant for each in failures if not each.rejected] == ["beta"]
    assert [each.request_id for each in failures if each.rejected] == 16 * ["x" * 64]
    assert bench.recorder.reasons == {"x": 1, "queue_full": 100}


def test_each_thing_counts_in_the_second_in_which_it_happened():
    bench = Bench()
    record = bench.start()
    bench.next_second()
    bench.next_second()
    record.end(Outcome.CANCELLED, "abort", 2.0, [0])
    bench.next_second()
    seconds = bench.recorder.windows.since(-1).seconds
    assert [(at, sum(t.started for t in each.values())) for at, each in seconds.items()] == [
        (1000, 1),
        (1001, 0),
        (1002, 0),
    ]
    assert seconds[1002][CHAT].cancelled == 1
    assert bench.recorder.totals[CHAT].ended == 1


def test_a_wall_clock_that_is_set_back_loses_nothing():
    bench = Bench()
    bench.start()
    bench.next_second()
    bench.start()
    bench.wall -= 500.0
    bench.recorder.tick({}, 0.0, 0.1)
    assert bench.recorder.totals[CHAT].started == 1
    bench.wall += 501.0
    assert bench.totals()[CHAT].started == 2


def test_totals_name_the_tenants_that_came_first_and_are_never_less():
    bench = Bench()
    for tenant in ("a", "b", "c", "d", "a"):
        finish(bench.start(tenant), first_at=0.1, gap_s=0.01, tokens=2)
        bench.next_second()
    started = {series.tenant: tally.started for series, tally in bench.totals().items()}
    assert started == {"a": 2, "b": 1, OTHERS: 2}


def test_time_of_waiting_is_the_tenants_once():
    bench = Bench()
    record = bench.start()
    bench.recorder.tick({"acme": Ticket(record)}, 0.0, 0.25)
    bench.recorder.tick({"acme": Ticket(record)}, 0.0, 0.5)
    assert bench.totals()[CHAT].backlogged_s == 0.75


def test_without_telemetry_only_the_metrics_count():
    bench = Bench(TelemetryConfig(enabled=False))
    finish(bench.start(), first_at=0.1, gap_s=0.01, tokens=2)
    assert bench.totals() == {}
    assert (bench.metrics.started, bench.metrics.open) == (1, 0)
    assert bench.metrics.generated_tokens == 2


def test_a_report_tells_what_is_lacking_and_what_is_now():
    bench = Bench()
    record = bench.start(weight=2.0)
    bench.next_second()
    finish(bench.start(), first_at=0.1, gap_s=0.01, tokens=2)
    bench.next_second()
    load = LoadReport(running=1)
    view = ReplicaView("r0", True, replica_info(max_sequences=7), load, 0.5, open_sequences=2)
    reporter = Reporter(
        "me", "model", bench.recorder, Waiting({"acme": Ticket(record, 4.0)}), lambda: [view],
        lambda: 10.0, lambda: None,
    )  # fmt: skip
    report = reporter.report(1000)
    assert list(report.seconds) == [1001] and report.after == 1000
    assert report.totals[CHAT].started == 2
    assert report.weights == {"acme": 1.0}, "the newest"
    assert (report.queued, report.oldest_s) == ({"acme": 3}, {"acme": 6.0})
    state = report.replicas["r0"]
    assert (state.load, state.age_s, state.live, state.seats) == (load, 0.5, True, 7)
    assert state.open_sequences == 2
    assert report.open == 1
    assert list(report.places.seconds) == [1001] and report.places.after == 1000
    assert (report.router_id, report.model) == ("me", "model")
    assert list(reporter.report(-1).seconds) == [1000, 1001]
