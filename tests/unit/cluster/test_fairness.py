import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chairlift.cluster.fairness import VirtualCounters, gap_bound, service


def test_output_costs_twice_what_input_costs():
    assert service(10, 5) == 20


def test_the_bound_is_twice_the_larger_of_a_prompt_and_a_batch_of_output():
    assert gap_bound(1000, 10) == 2000
    assert gap_bound(10, 1000) == 4000


def test_service_counts_in_proportion_to_the_weight():
    counters = VirtualCounters()
    for tenant, weight in (("light", 1.0), ("heavy", 4.0)):
        counters.arrive(tenant, weight, 0, waits=True)
        counters.charge(tenant, input_tokens=100)
    assert counters.value("light") == 4 * counters.value("heavy") == 100


def test_what_is_given_back_is_as_if_it_had_never_been_charged():
    counters = VirtualCounters()
    counters.charge("t", 100, 7)
    counters.charge("t", -100)
    assert counters.value("t") == counters.own("t") == 14


def test_who_never_came_has_no_service():
    assert VirtualCounters().value("nobody") == 0.0


def test_who_comes_back_is_lifted_to_the_value_of_who_was_chosen_last():
    counters = VirtualCounters()
    counters.charge("a", 100)
    counters.chosen("a", 0)
    counters.charge("a", 50)
    counters.arrive("c", 1.0, 0, waits=False)
    assert counters.value("c") == counters.lift("c") == 100
    assert counters.own("c") == 0


def test_classes_have_their_own_times():
    counters = VirtualCounters()
    counters.charge("a", 100)
    counters.chosen("a", 0)
    counters.arrive("c", 1.0, 2, waits=False)
    assert counters.value("c") == 0


def test_nobody_is_lowered_and_who_waits_already_is_not_lifted():
    counters = VirtualCounters()
    counters.charge("a", 100)
    counters.charge("b", 50)
    counters.chosen("b", 0)
    counters.arrive("a", 1.0, 0, waits=False)
    assert counters.value("a") == 100
    counters.arrive("c", 1.0, 0, waits=True)
    assert counters.value("c") == 0


def test_time_never_runs_back():
    counters = VirtualCounters()
    counters.charge("a", 100)
    counters.chosen("a", 0)
    counters.chosen("b", 0)
    counters.arrive("c", 1.0, 0, waits=False)
    assert counters.value("c") == 100


def test_what_others_served_counts_and_the_highest_lift_holds():
    counters = VirtualCounters()
    counters.arrive("t", 2.0, 0, waits=True)
    counters.charge("t", 10)
    counters.set_others("t", 30, lift=4)
    assert counters.value("t") == (10 + 30) / 2 + 4
    counters.set_others("t", 20, lift=1)
    assert counters.value("t") == (10 + 20) / 2 + 4
    assert counters.own("t") == 10


calls = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from([0.5, 1.0, 3.0]), st.integers(0, 99), st.booleans()
    ),
    max_size=30,
)


@given(calls)
def test_the_state_survives_json_and_goes_on_the_same(sequence):
    one, other = VirtualCounters(), VirtualCounters()
    for tenant, weight, tokens, arrives in sequence:
        for counters in (one, other):
            if arrives:
                counters.arrive(tenant, weight, tokens % 3, waits=tokens % 2 == 0)
            counters.chosen(tenant, tokens % 3)
            counters.charge(tenant, tokens)
        other_state = json.loads(json.dumps(other.state()))
        other = VirtualCounters()
        other.restore(other_state)
    assert [one.value(tenant) for tenant in "abc"] == [other.value(tenant) for tenant in "abc"]


@given(calls)
def test_an_arrival_never_takes_service_from_anybody(sequence):
    counters = VirtualCounters()
    for tenant, weight, tokens, _ in sequence:
        before = {each: counters.value(each) for each in "abc"}
        counters.arrive(tenant, 1.0, 0, waits=False)
        assert counters.value(tenant) >= before[tenant]
        assert all(counters.value(each) == before[each] for each in "abc" if each != tenant)
        counters.chosen(tenant, 0)
        counters.charge(tenant, tokens * weight)


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0, "x"], None])
def test_a_damaged_state_is_an_error_and_changes_nothing(values):
    counters = VirtualCounters()
    counters.charge("t", 5)
    with pytest.raises((TypeError, ValueError)):
        counters.restore({"accounts": {"u": [1.0, 0.0, 0.0, 0.0, 1.0], "v": values}, "times": []})
    assert counters.state() == {"accounts": {"t": [1.0, 5.0, 0.0, 0.0, 0.0]}, "times": []}


def test_who_comes_back_has_saved_a_few_requests_at_most():
    counters = VirtualCounters(burst=2)
    for _ in range(10):
        counters.arrive("busy", 1.0, 0, waits=True)
    counters.charge("busy", input_tokens=1000)
    counters.chosen("busy", 0)
    counters.arrive("idle", 2.0, 0, waits=False)
    assert counters.value("idle") == pytest.approx(1000 - 2 * (1000 / 11) / 2)
