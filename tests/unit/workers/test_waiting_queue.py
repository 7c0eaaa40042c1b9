import pytest

from chairlift.cluster.fairness import VirtualCounters
from chairlift.cluster.protocol import Priority
from chairlift.workers.waiting_queue import WaitingQueue
from support.engines import sequence


@pytest.fixture
def counters() -> VirtualCounters:
    return VirtualCounters()


def queue_of(counters: VirtualCounters, *sequences, fair: bool = True) -> WaitingQueue:
    queue = WaitingQueue(counters, fair, lambda each: 0 if each.resumes else each.num_prompt)
    for each in sequences:
        queue.arrive(each)
    return queue


def arrivals(queue: WaitingQueue) -> list[int]:
    return [each.arrival for each in queue]


def preempted(arrival: int, **changes):
    made = sequence(arrival, **changes)
    made.preemptions = 1
    return made


def test_without_tenants_and_classes_it_is_the_order_of_arrival(counters):
    queue = queue_of(counters, *(sequence(i, range(i + 1)) for i in range(3)))
    assert arrivals(queue) == [0, 1, 2]
    assert (len(queue), queue.num_tokens) == (3, 6)


def test_what_was_removed_is_gone_and_uncounted(counters):
    first, second, third = (sequence(i, range(i + 2)) for i in range(3))
    queue = queue_of(counters, first, second, third)
    queue.remove(second)
    assert arrivals(queue) == [0, 2]
    assert (len(queue), queue.num_tokens) == (2, 6)
    assert first in queue and second not in queue
    with pytest.raises(KeyError):
        queue.remove(second)


def test_a_class_goes_before_any_counter(counters):
    counters.charge("a", output_tokens=100)
    queue = queue_of(
        counters,
        sequence(0, tenant="b", priority=Priority.BATCH),
        sequence(1, tenant="b"),
        sequence(2, tenant="a", priority=Priority.INTERACTIVE),
    )
    assert arrivals(queue) == [2, 1, 0]


def test_the_tenant_that_was_served_least_is_next(counters):
    queue = queue_of(counters, sequence(0, tenant="a"), sequence(1, tenant="b"))
    counters.charge("a", output_tokens=1)
    assert arrivals(queue) == [1, 0]
    counters.charge("b", output_tokens=5)
    assert arrivals(queue) == [0, 1]


def test_service_counts_by_weight(counters):
    queue = queue_of(counters, sequence(0, tenant="a", weight=4.0), sequence(1, tenant="b"))
    counters.charge("a", output_tokens=30)
    counters.charge("b", output_tokens=10)
    assert arrivals(queue) == [0, 1]


def test_each_is_counted_as_served_before_the_next_one_is_named(counters):
    """Else one tenant would get all seats that come free together."""
    made = [sequence(i, tenant=tenant) for i, tenant in enumerate("aaaabb")]
    assert arrivals(queue_of(counters, *made)) == [0, 4, 1, 5, 2, 3]
    assert counters.value("a") == counters.value("b") == 0


def test_long_prompts_count_for_more(counters):
    long = [sequence(i, range(9), tenant="a") for i in range(3)]
    short = [sequence(i, range(3), tenant="b") for i in range(3, 8)]
    assert arrivals(queue_of(counters, *long, *short)) == [0, 3, 4, 5, 1, 6, 7, 2]


def test_who_ran_before_goes_before_others_of_its_tenant_only(counters):
    queue = queue_of(
        counters,
        sequence(0, tenant="a"),
        sequence(1, tenant="b"),
        sequence(2, tenant="a", output=(7,)),
    )
    queue.insert(preempted(3, tenant="a"))
    counters.charge("a", output_tokens=1)
    assert arrivals(queue) == [1, 2, 3, 0]
    counters.charge("b", output_tokens=2)
    assert arrivals(queue) == [2, 3, 0, 1]


def test_unfair_means_by_class_and_arrival(counters):
    made = [sequence(i, tenant=tenant) for i, tenant in enumerate("aaaabb")]
    urgent = sequence(6, tenant="a", priority=Priority.INTERACTIVE)
    queue = queue_of(counters, *made, urgent, fair=False)
    counters.charge("a", output_tokens=100)
    assert arrivals(queue) == [6, 0, 1, 2, 3, 4, 5]
    queue.set_fair(True)
    assert arrivals(queue) == [6, 4, 5, 0, 1, 2, 3]
    queue.set_fair(False)
    assert arrivals(queue) == [6, 0, 1, 2, 3, 4, 5]


class TestArrival:
    def test_nobody_saves_up_service_while_others_are_served(self, counters):
        counters.charge("a", output_tokens=50)
        counters.chosen("a", Priority.STANDARD)
        queue = queue_of(counters, sequence(1, tenant="b"))
        assert counters.value("b") == 100 and len(queue) == 1

    def test_who_waits_already_is_not_lifted(self, counters):
        queue = queue_of(counters, sequence(2, tenant="b"))
        counters.charge("a", output_tokens=50)
        counters.chosen("a", Priority.STANDARD)
        queue.arrive(sequence(4, tenant="b"))
        assert counters.value("b") == 0

    def test_a_tenant_that_weighs_more_now_is_found_earlier(self, counters):
        queue = queue_of(counters, sequence(0, tenant="a"), sequence(1, tenant="b"))
        counters.charge("a", output_tokens=10)
        counters.charge("b", output_tokens=15)
        assert arrivals(queue) == [0, 1]
        queue.arrive(sequence(2, tenant="b", weight=2.0))
        assert arrivals(queue) == [1, 2, 0]


def test_tenants_that_come_and_go_leave_nothing_behind(counters):
    """Entries of the heap that are out of date must not pile up behind one that stays."""
    queue = queue_of(counters, sequence(0, tenant="a"))
    for arrival in range(1, 1000):
        passing = sequence(arrival, tenant="b")
        queue.arrive(passing)
        queue.remove(passing)
    assert arrivals(queue) == [0]
    assert len(queue._heap) < 20
