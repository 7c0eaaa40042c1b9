from dataclasses import replace

import pytest

from chairlift.cluster.errors import Overloaded, RateLimited, RequestError, Unavailable
from chairlift.cluster.protocol import Request, SamplingParams
from chairlift.cluster.tenants import Tenant
from chairlift.router.admission import Admission, AdmissionLimits, Backlog, Used

LIMITS = AdmissionLimits(max_requests=10, max_queued=4, max_queued_tokens=1000)
EMPTY = Backlog(
    open_requests=0, queued=0, queued_tokens=0, predicted_s=0.0, retry_after_s=lambda: 3.0
)
ACME = Tenant(
    "acme", prompt_tokens_per_minute=600, output_tokens_per_minute=60, max_requests=2
)  # 10 and 1 in a second


def request(prompt_tokens: int = 10) -> Request:
    return Request("r", tuple(range(prompt_tokens)), SamplingParams(max_tokens=5), tenant="acme")


def refusal(
    admission: Admission,
    tenant: Tenant = ACME,
    prompt_tokens: int = 10,
    backlog: Backlog = EMPTY,
    now: float = 0.0,
) -> RequestError | None:
    try:
        admission.check(tenant, request(prompt_tokens), 5.0, backlog, now)
    except RequestError as error:
        assert error.message and error.retry_after_s is not None and error.retry_after_s >= 1.0
        return error
    return None


def expect(error: RequestError | None, kind: type[RequestError], code: str) -> RequestError:
    assert type(error) is kind and error.code == code
    return error


def test_a_tenant_without_limits_gets_in():
    assert refusal(Admission(LIMITS), Tenant("free")) is None


def test_a_tenant_has_so_many_requests_open_and_another_when_one_ends():
    admission = Admission(LIMITS)
    admission.started(ACME, 1, 0.0)
    assert refusal(admission) is None
    admission.started(ACME, 1, 0.0)
    error = expect(refusal(admission), RateLimited, "tenant_requests")
    assert "2 requests open" in error.message and error.retry_after_s == 3.0
    assert refusal(admission, Tenant("other")) is None
    admission.ended("acme")
    assert refusal(admission) is None
    assert admission.open_of("acme") == 1


def test_what_is_open_at_other_routers_counts():
    admission = Admission(LIMITS)
    admission.started(ACME, 1, 0.0)
    admission.used_elsewhere("acme", 0, 0, 1, 0.0)
    expect(refusal(admission), RateLimited, "tenant_requests")
    admission.used_elsewhere("acme", 0, 0, 0, 0.0)
    assert refusal(admission) is None
    assert admission.open_of("acme") == 1


def test_a_prompt_waits_until_the_minute_has_room_for_it():
    admission = Admission(LIMITS)
    assert refusal(admission, prompt_tokens=600) is None
    admission.started(ACME, 550, 0.0)
    assert refusal(admission, prompt_tokens=50) is None
    error = expect(refusal(admission, prompt_tokens=90), RateLimited, "tenant_prompt_tokens")
    assert error.retry_after_s == pytest.approx(4.0)
    assert refusal(admission, prompt_tokens=90, now=4.1) is None


def test_a_prompt_that_is_longer_than_a_minute_is_not_refused_for_ever():
    admission = Admission(LIMITS)
    assert refusal(admission, prompt_tokens=900) is None
    admission.started(ACME, 900, 0.0)
    admission.ended("acme")
    expect(refusal(admission, prompt_tokens=1, now=29.0), RateLimited, "tenant_prompt_tokens")
    assert refusal(admission, prompt_tokens=1, now=31.0) is None


def test_output_is_settled_afterwards():
    admission = Admission(LIMITS)
    assert refusal(admission) is None
    admission.generated("acme", 90, 0.0)
    error = expect(refusal(admission), RateLimited, "tenant_output_tokens")
    assert error.retry_after_s == pytest.approx(31.0)
    assert refusal(admission, now=32.0) is None


def test_what_other_routers_gave_counts():
    admission = Admission(LIMITS)
    assert refusal(admission) is None
    admission.used_elsewhere("acme", 700, 0, 0, 0.0)
    expect(refusal(admission), RateLimited, "tenant_prompt_tokens")
    admission.used_elsewhere("acme", -700, 100, 0, 0.0)
    expect(refusal(admission), RateLimited, "tenant_output_tokens")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"open_requests": 10}, "router_full"),
        ({"queued": 4}, "queue_full"),
        ({"queued": 1, "queued_tokens": 991}, "queue_tokens"),
    ],
)
def test_a_router_that_is_full_takes_no_more(changes, code):
    backlog = replace(EMPTY, **changes)
    error = expect(refusal(Admission(LIMITS), backlog=backlog), Overloaded, code)
    assert error.retry_after_s == 3.0
    if code != "router_full":
        assert refusal(Admission(LIMITS), backlog=replace(backlog, waits=False)) is None


def test_a_prompt_that_is_longer_than_the_queue_may_be_waits_alone():
    assert refusal(Admission(LIMITS), Tenant("free"), prompt_tokens=5000) is None


def test_a_deadline_that_cannot_be_met_is_refused_at_once():
    late = replace(EMPTY, predicted_s=7.5)
    error = expect(refusal(Admission(LIMITS), backlog=late), Unavailable, "deadline_unreachable")
    assert error.retry_after_s == 2.5
    assert "7.5 s" in error.message and "5.0 s" in error.message
    assert refusal(Admission(LIMITS), backlog=replace(EMPTY, predicted_s=5.0)) is None
    assert refusal(Admission(LIMITS), backlog=replace(EMPTY, predicted_s=None)) is None


def test_a_refusal_uses_nothing_up():
    admission = Admission(LIMITS)
    for _ in range(100):
        refusal(admission, backlog=replace(EMPTY, queued=4))
    assert refusal(admission, prompt_tokens=600) is None
    assert admission.used() == {"acme": Used(0, 0, 0)}


def test_use_is_counted_since_the_start_and_nothing_ends_that_had_not_started():
    admission = Admission(LIMITS)
    admission.started(ACME, 30, 0.0)
    admission.generated("acme", 4, 0.0)
    assert admission.used() == {"acme": Used(30, 4, 1)}
    admission.ended("acme")
    with pytest.raises(AssertionError):
        admission.ended("acme")
    assert admission.used() == {"acme": Used(30, 4, 0)}
    assert admission.open_of("nobody") == 0


def test_a_limit_that_has_changed_holds_at_once_and_one_that_was_lifted_no_longer():
    admission = Admission(LIMITS)
    assert refusal(admission) is None
    admission.started(ACME, 600, 0.0)
    expect(refusal(admission), RateLimited, "tenant_prompt_tokens")
    assert refusal(admission, replace(ACME, prompt_tokens_per_minute=60_000)) is None
    assert refusal(admission, replace(ACME, prompt_tokens_per_minute=None)) is None
