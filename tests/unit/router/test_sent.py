import pytest

from chairlift.cluster.protocol import LoadReport
from chairlift.router.sent import SentLedger, Speed
from support.engines import submission


def test_a_request_counts_until_the_report_of_a_later_step():
    ledger = SentLedger()
    ledger.add(submission(1, [1] * 10, n=2))
    ledger.observe(LoadReport(step=100))
    assert (ledger.sequences, ledger.tokens) == (2, 20)  # not even answered
    ledger.accept(1, 100)
    ledger.observe(LoadReport(step=100))
    assert (ledger.sequences, ledger.tokens) == (2, 20)
    ledger.observe(LoadReport(step=101))
    assert (ledger.sequences, ledger.tokens) == (0, 0)


def test_refused_and_ended_requests_do_not_count():
    ledger = SentLedger()
    ledger.add(submission(1, [1] * 10))
    ledger.add(submission(2, [1] * 5))
    ledger.remove(1)
    ledger.remove(1)
    ledger.remove(99)
    assert (ledger.sequences, ledger.tokens) == (1, 5)
    ledger.remove(2)
    assert (ledger.sequences, ledger.tokens) == (0, 0)


def test_speed_is_measured_over_times_with_work():
    speed = Speed()
    speed.observe(LoadReport(tokens_computed=0), 0.0)
    speed.observe(LoadReport(tokens_computed=50), 0.5)
    assert speed.tokens_per_s is None  # too short to tell
    speed.observe(LoadReport(tokens_computed=200), 2.0)
    assert speed.tokens_per_s == pytest.approx(100.0)
    speed.observe(LoadReport(tokens_computed=200), 60.0)
    assert speed.tokens_per_s == pytest.approx(100.0)
    speed.observe(LoadReport(tokens_computed=400), 61.0)
    assert speed.tokens_per_s == pytest.approx(130.0)
