import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chairlift.cluster.errors import InvalidRequest
from chairlift.cluster.protocol import Priority
from chairlift.cluster.tenants import Tenant
from chairlift.deployments.request_terms import (
    Caller,
    read_deadline,
    read_key,
    read_priority,
    read_timeout,
    salt_for,
)

names = st.text(st.sampled_from("abc-_AZ09"), min_size=1, max_size=5)
salts = st.text(st.sampled_from("abc=-\n\0") | st.characters(), max_size=8)
tenants = st.builds(Tenant, names, private_cache=st.booleans())


@given(tenants, salts, tenants, salts)
def test_a_private_cache_is_shared_with_no_other_tenant_whatever_the_salts(one, salt, two, other):
    assume(one.name != two.name and (one.private_cache or two.private_cache))
    assert salt_for(one, salt) != salt_for(two, other)


@given(tenants, salts, salts)
def test_a_tenants_own_salts_stay_apart(tenant, salt, other):
    assert (salt_for(tenant, salt) == salt_for(tenant, other)) == (salt == other)


def test_without_a_private_cache_a_salt_is_shared_by_who_knows_it():
    assert salt_for(Tenant("a"), "x") == salt_for(Tenant("b"), "x")
    assert salt_for(Tenant("a"), "") == ""


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (None, None),
        ("", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("Basic abc", None),
        ("Bearer abc", "abc"),
        ("bearer  abc ", "abc"),
    ],
)
def test_the_key_is_what_follows_the_word_bearer(header, key):
    assert read_key(header) == key


@pytest.mark.parametrize(("header", "seconds"), [("2", 2.0), ("0.25", 0.25), (".5", 0.5)])
def test_a_timeout_is_a_decimal_number_of_seconds(header, seconds):
    assert read_timeout(header) == seconds


@pytest.mark.parametrize(
    "header", ["", "0", "0.0", "-1", "+1", "1e3", "nan", "inf", "1s", "1_0", "٣", "9" * 400]
)
def test_any_other_timeout_is_refused_by_the_headers_name(header):
    with pytest.raises(InvalidRequest) as refused:
        read_timeout(header)
    assert refused.value.param == "X-Request-Timeout"


@pytest.mark.parametrize(
    ("timeout_s", "deadline_ms", "seconds"),
    [(None, None, None), (2.0, None, 2.0), (None, 1500, 1.5), (2.0, 1500, 1.5), (1.0, 1500, 1.0)],
)
def test_the_sooner_deadline_wins(timeout_s, deadline_ms, seconds):
    assert read_deadline(Caller("id", timeout_s=timeout_s), deadline_ms) == seconds


def test_a_request_may_go_down_from_its_tenants_class_and_not_up():
    tenant = Tenant("t", priority=Priority.STANDARD)
    assert read_priority(tenant, None) is Priority.STANDARD
    assert read_priority(tenant, "standard") is Priority.STANDARD
    assert read_priority(tenant, "batch") is Priority.BATCH
    with pytest.raises(InvalidRequest) as refused:
        read_priority(tenant, "interactive")
    assert refused.value.param == "priority"
