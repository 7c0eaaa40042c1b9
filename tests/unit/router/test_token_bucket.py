import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.router.token_bucket import TokenBucket


def test_it_starts_with_a_minutes_worth_and_fills_up_to_that():
    bucket = TokenBucket(60)
    bucket.take(30, now=1000.0)
    assert bucket.level == 30
    bucket.take(0, now=1010.0)
    assert bucket.level == 40
    bucket.take(0, now=5000.0)
    assert bucket.level == 60


def test_what_is_overdrawn_is_paid_back_before_anything_is_allowed():
    bucket = TokenBucket(60)
    bucket.take(90, now=0.0)
    assert bucket.level == -30
    assert not bucket.allows(29.0)
    assert bucket.allows(31.0)


def test_more_than_a_minute_holds_is_allowed_when_it_is_full():
    bucket = TokenBucket(60)
    assert bucket.allows(0.0, tokens=1000)
    bucket.take(1, now=0.0)
    assert not bucket.allows(0.5, tokens=1000)
    assert bucket.allows(1.0, tokens=1000)


def test_a_clock_that_reads_earlier_adds_nothing_twice():
    bucket = TokenBucket(60)
    bucket.take(60, now=10.0)
    bucket.take(0, now=5.0)
    bucket.take(0, now=11.0)
    assert bucket.level == pytest.approx(1.0)


@given(st.floats(0.1, 1e6), st.floats(0, 2e6), st.floats(0, 2e6))
def test_it_allows_after_the_wait_that_it_names(per_minute, used, tokens):
    bucket = TokenBucket(per_minute)
    bucket.take(used, now=0.0)
    wait_s = bucket.wait_s(0.0, tokens)
    assert bucket.allows(0.0, tokens) == (wait_s == 0.0)
    assert bucket.allows(wait_s * (1 + 1e-9) + 1e-6, tokens)
