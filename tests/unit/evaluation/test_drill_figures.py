"""The figures of the drills, from records that are given."""

import random

import pytest

from chairlift.evaluation.drill_flood import FloodSettings, Served, slowdowns, widest_gap
from chairlift.evaluation.drill_overload import goodput, recovery_s
from chairlift.evaluation.drill_prefix import PrefixSettings, shared_prompt
from chairlift.evaluation.drill_vanish import KINDS, request_bytes
from chairlift.evaluation.records import RequestRecord


def record(intended: float, first: float | None = None, ended: float = 1.0, **changes):
    chunks = () if first is None else (intended + first,)
    return RequestRecord(
        intended=intended,
        sent=intended,
        ended=intended + ended,
        asked_prompt=1,
        asked_output=1,
        chunks=chunks,
        failure=changes.get("failure"),
    )


def test_goodput_counts_refused_and_late_ones_as_bad():
    records = [record(0.0, 0.5), record(1.0, 3.5), record(2.0, failure="http_503")]
    assert goodput(records, deadline_s=3.0) == pytest.approx(1 / 3)
    assert goodput([], deadline_s=3.0) == 0.0


@pytest.mark.parametrize(
    ("bad", "seconds"),
    [([], 0.0), ([12.0], 5.0), ([12.0, 22.0], 15.0), ([28.0], None)],
    ids=["never gone", "one window", "gone again", "not back"],
)
def test_recovery_is_the_end_of_the_last_bad_window(bad, seconds):
    records = [
        record(float(at), None if at in bad else 0.5, failure="http_503" if at in bad else None)
        for at in range(10, 30)
    ]
    assert recovery_s(records, 10.0, deadline_s=1.0, wanted=0.95) == seconds


def test_nothing_that_was_offered_is_no_recovery():
    assert recovery_s([], 0.0, deadline_s=1.0, wanted=0.95) is None


def test_slowdown_is_of_the_same_request_and_skips_the_failed():
    alone = [record(0.0, ended=1.0), record(1.0, ended=2.0), record(2.0, ended=1.0)]
    beside = [record(0.0, ended=3.0), record(1.0, failure="http_429"), record(2.0, ended=1.5)]
    assert slowdowns(alone, beside) == [3.0, 1.5]


def test_the_service_gap_is_over_the_time_in_which_both_waited():
    def sample(one: float, other: float, queued: float = 1) -> dict[str, Served]:
        return {"one": Served(one, queued), "other": Served(other, 1)}

    samples = [
        sample(500, 0, queued=0),
        sample(1000, 400),
        sample(1100, 600),
        sample(1300, 650),
        sample(5000, 650, queued=0),
    ]
    assert widest_gap(samples, "one", "other") == 150
    assert widest_gap(samples[:1], "one", "other") is None
    assert widest_gap([{"one": Served(1, 1)}], "one", "other") is None


def test_a_tenants_key_is_known_by_its_hash_only():
    settings = FloodSettings()
    tenants = settings.config(1, fair=True)["tenants"]
    assert isinstance(tenants, dict) and len(tenants) == 5
    assert all(each["keys"][0].startswith("sha256:") for each in tenants.values())
    assert settings.rate_of("heavy-1") == 10 * settings.rate_of("light-1")


def test_questions_share_their_prompt_and_nothing_else():
    settings = PrefixSettings()
    one, other = (shared_prompt(settings, "m", index).body["prompt"] for index in (1, 2))
    shared = settings.shared_tokens
    assert one[:shared] == other[:shared]
    assert one[shared:] != other[shared:]
    assert settings.best_hit_rate == pytest.approx(1520 / 2200)


def test_vanishing_clients_say_as_much_as_their_kind():
    sizes = {kind: len(request_bytes(kind, "m", 10, random.Random(0))) for kind in KINDS}
    assert sizes["silent"] == 0
    assert sizes["half the headers"] < sizes["half the body"] < sizes["whole"]
    whole = request_bytes("whole", "m", 10, random.Random(0))
    head, body = whole.split(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
