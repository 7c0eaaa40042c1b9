from hypothesis import given
from hypothesis import strategies as st

from chairlift.cluster.exchange import MAX_DEPARTED, Exchange, TenantUse


def used(service: float, lift: float = 0.0, num_open: int = 0) -> TenantUse:
    return TenantUse(service, service, 2 * service, lift, num_open, num_open)


def test_a_router_is_told_the_sum_of_all_others():
    exchange = Exchange()
    assert exchange.put("a", {"t": used(10, num_open=1)}, 0.0) == {}
    assert exchange.put("b", {"t": used(5, num_open=2)}, 0.0) == {"t": used(10, num_open=1)}
    exchange.put("c", {"u": used(7)}, 0.0)
    assert exchange.put("a", {}, 0.0) == {"t": used(5, num_open=2), "u": used(7)}


def test_the_highest_lift_counts():
    exchange = Exchange()
    exchange.put("a", {"t": used(0, lift=3)}, 0.0)
    exchange.put("b", {"t": used(0, lift=8)}, 0.0)
    assert exchange.put("c", {}, 0.0)["t"].lift == 8


def test_a_message_that_comes_twice_counts_once():
    exchange = Exchange()
    for _ in range(3):
        exchange.put("a", {"t": used(10)}, 0.0)
    assert exchange.put("b", {}, 0.0) == {"t": used(10)}


def test_of_a_router_that_departed_only_what_it_served_counts():
    exchange = Exchange(expire_s=10.0)
    exchange.put("a", {"t": used(10, num_open=4)}, 0.0)
    assert exchange.put("b", {}, 10.0)["t"] == used(10, num_open=4)
    assert exchange.put("b", {}, 10.1)["t"] == used(10)


def test_a_router_that_comes_back_is_not_counted_twice():
    exchange = Exchange(expire_s=10.0)
    exchange.put("a", {"t": used(10, num_open=4)}, 0.0)
    exchange.put("b", {}, 100.0)
    exchange.put("a", {"t": used(12, num_open=1)}, 101.0)
    assert exchange.put("b", {}, 101.0)["t"] == used(12, num_open=1)


def test_memory_is_bounded_and_what_was_served_is_never_lost():
    exchange = Exchange(expire_s=1.0)
    for number in range(1000):
        exchange.put(f"router {number}", {"t": used(1, num_open=1)}, 10.0 * number)
    assert len(exchange._accounts) <= MAX_DEPARTED + 1
    assert exchange.put("last", {}, 1e6)["t"] == used(1000)


puts = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.dictionaries(st.sampled_from("tu"), st.integers(0, 9), max_size=2),
        st.sampled_from([0.0, 1.0, 15.0]),
    ),
    max_size=30,
)


@given(puts)
def test_the_sum_is_that_of_all_numbers_ever_put(sequence):
    exchange, totals, now = Exchange(), {}, 0.0
    for router, grown, later in sequence:
        now += later
        own = totals.setdefault(router, {})
        for tenant, tokens in grown.items():
            own[tenant] = own.get(tenant, 0) + tokens
        told = exchange.put(router, {tenant: used(tokens) for tenant, tokens in own.items()}, now)
        for tenant in "tu":
            others = sum(each.get(tenant, 0) for name, each in totals.items() if name != router)
            assert told.get(tenant, TenantUse()).service == others
            assert told.get(tenant, TenantUse()).output_tokens == 2 * others
