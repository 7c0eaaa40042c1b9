from __future__ import annotations

from typing import Any

import pytest

from chairlift.evaluation.percentiles import Percentiles
from chairlift.evaluation.records import RequestRecord, steady_tokens_per_s, summarise


def record(**changes: Any) -> RequestRecord:
    """Meant for 1.0 s, sent at 1.5 s; three tokens at 2, 3 and 5 s; ended at 6 s."""
    fields: dict[str, Any] = {
        "intended": 1.0,
        "sent": 1.5,
        "ended": 6.0,
        "asked_prompt": 10,
        "asked_output": 3,
        "chunks": (2.0, 3.0, 5.0),
        "prompt_tokens": 11,
        "output_tokens": 3,
    }
    return RequestRecord(**(fields | changes))


def one(value: float, count: float = 1.0) -> Percentiles:
    return Percentiles(value, value, value, value, count)


def test_one_request_by_hand() -> None:
    summary = summarise([record()])
    assert (summary.offered, summary.completed, summary.failures) == (1, 1, {})
    assert summary.duration == 5.0
    assert summary.time_to_first_token == one(1.0)
    assert summary.end_to_end == one(5.0)
    assert summary.lag == one(0.5)
    assert summary.inter_token_latency == Percentiles(1.5, 1.0, 2.0, 2.0, 2.0)
    assert summary.time_per_output_token == one(2.0)  # (6 − 2) / (3 − 1)
    assert summary.longest_gap == one(2.0)
    assert summary.output_tokens_per_s == 3 / 5
    assert summary.total_tokens_per_s == 14 / 5
    assert (summary.asked_ratio, summary.right_length) == (1.0, 1.0)


def test_tokens_are_spread_over_the_chunks_that_carried_them() -> None:
    """Six tokens in three chunks: each gap counts twice at half its length."""
    summary = summarise([record(output_tokens=6, asked_output=6)])
    assert summary.inter_token_latency == Percentiles(0.75, 0.5, 1.0, 1.0, 4.0)
    assert (summary.output_tokens, summary.chunks) == (6, 3)
    assert summary.longest_gap == one(2.0)


def test_a_long_answer_weighs_more_in_the_inter_token_latency_than_a_short_one() -> None:
    slow = record(chunks=(2.0, 6.0), output_tokens=2, asked_output=2)
    fast = record(chunks=tuple(2.0 + 0.1 * i for i in range(21)), output_tokens=21, asked_output=21)
    summary = summarise([slow, fast])
    assert summary.inter_token_latency is not None
    assert summary.inter_token_latency.p95 == pytest.approx(0.1)
    assert summary.inter_token_latency.p99 == 4.0


def test_latency_counts_from_the_intended_time_also_when_sending_was_late() -> None:
    summary = summarise([record(sent=1.9)])
    assert summary.time_to_first_token == one(1.0)
    assert summary.lag == one(pytest.approx(0.9))


def test_everything_offered_is_completed_or_failed() -> None:
    failed = {"chunks": (), "output_tokens": None}
    records = [
        record(),
        record(failure="http_429", detail="first", **failed),
        record(failure="http_429", detail="second", **failed),
        record(failure="timeout", detail="late", ended=31.0, **failed),
        record(failure="in_flight_limit", sent=None, **failed),
    ]
    summary = summarise(records)
    assert summary.failures == {"http_429": 2, "timeout": 1, "in_flight_limit": 1}
    assert next(iter(summary.failures)) == "http_429"
    assert summary.details["http_429"] == "first"
    assert summary.completed + sum(summary.failures.values()) == summary.offered == 5
    assert summary.duration == 30.0
    assert summary.lag == one(0.5, 4.0)


def test_failed_requests_add_neither_tokens_nor_latencies() -> None:
    summary = summarise([record(), record(failure="cut_stream", chunks=(1.1,), ended=6.0)])
    assert summary.output_tokens == 3
    assert summary.time_to_first_token == one(1.0)


def test_chunks_stand_for_tokens_where_the_server_does_not_count() -> None:
    summary = summarise([record(output_tokens=None, prompt_tokens=None)])
    assert (summary.output_tokens, summary.prompt_tokens, summary.uncounted) == (3, 10, 1)


def test_answers_of_the_wrong_length_show() -> None:
    summary = summarise([record(asked_output=10), record()])
    assert summary.asked_ratio == 6 / 13
    assert summary.right_length == 0.5


def test_one_token_has_no_inter_token_latency() -> None:
    summary = summarise([record(chunks=(2.0,), output_tokens=1, asked_output=1)])
    assert summary.inter_token_latency is None
    assert summary.time_per_output_token is None
    assert summary.longest_gap is None


def test_nothing_offered_gives_an_empty_summary() -> None:
    summary = summarise([])
    assert (summary.offered, summary.duration, summary.output_tokens_per_s) == (0, 0.0, 0.0)
    assert summary.end_to_end is None and summary.asked_ratio is None


def decoding(*chunks: float, tokens: int | None = None) -> RequestRecord:
    number = len(chunks) if tokens is None else tokens
    return record(chunks=chunks, output_tokens=number, asked_output=number)


def test_the_steady_rate_counts_only_while_all_seats_decode() -> None:
    """Two decode from 2 to 4 and from 7 to 8; three tokens come, and then two."""
    records = [
        decoding(1.0, 2.5, 4.0),
        decoding(2.0, 3.0, 5.0, 8.0),
        decoding(7.0, 7.5, 9.0),
    ]
    assert steady_tokens_per_s(records, 2) == pytest.approx(5 / 3)


def test_the_steady_rate_spreads_tokens_over_chunks() -> None:
    assert steady_tokens_per_s([decoding(1.0, 2.0, 3.0, tokens=6)], 1) == pytest.approx(2.0)


def test_there_is_no_steady_rate_where_the_seats_were_never_full() -> None:
    records = [decoding(1.0, 2.0), decoding(3.0, 4.0), record(failure="timeout")]
    assert steady_tokens_per_s(records, 2) is None
    assert steady_tokens_per_s([], 1) is None
