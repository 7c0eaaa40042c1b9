import random
from collections.abc import Callable

import pytest

from chairlift.cluster.exchange import Exchange
from chairlift.cluster.fairness import VirtualCounters, gap_bound
from chairlift.cluster.protocol import Priority
from chairlift.cluster.tenants import Tenant
from chairlift.router.admission import Admission, AdmissionLimits
from chairlift.router.fair_queue import FairQueue
from chairlift.router.shared_use import SharedUse
from support.queueing import SeatedServer, Waiting

INTERACTIVE, STANDARD, BATCH = Priority


def queue_of(*items: Waiting, fair: bool = True) -> tuple[FairQueue[Waiting], VirtualCounters]:
    counters = VirtualCounters()
    queue: FairQueue[Waiting] = FairQueue(counters, fair=fair, promote_after_s=20.0)
    for item in items:
        queue.push(item)
    return queue, counters


def served(queue: FairQueue[Waiting], now: float = 0.0) -> list[Waiting]:
    order = []
    while (item := queue.next(now)) is not None:
        queue.remove(item)
        order.append(item)
    return order


def test_a_higher_class_goes_first_and_equals_in_order_of_arrival():
    a, b, c = Waiting(), Waiting(priority=INTERACTIVE), Waiting()
    assert served(queue_of(a, b, c)[0]) == [b, a, c]


def test_the_tenant_that_was_served_least_goes_first():
    a, b = Waiting("a"), Waiting("b")
    queue, counters = queue_of(a, b)
    counters.charge("a", input_tokens=1)
    assert served(queue) == [b, a]


def test_without_fairness_only_class_and_arrival_count():
    a, b, first = Waiting("a"), Waiting("b"), Waiting("a", priority=INTERACTIVE)
    queue, counters = queue_of(a, b, first, fair=False)
    counters.charge("a", input_tokens=1000)
    assert served(queue) == [first, a, b]


def test_who_waits_long_rises_class_by_class():
    slow, quick = Waiting(priority=BATCH), Waiting("u", priority=INTERACTIVE, queued_at=39.0)
    queue, counters = queue_of(slow, quick)
    counters.charge("u", input_tokens=50)
    assert queue.next(39.0) is quick
    assert queue.next(40.0) is slow


def test_a_tenant_that_was_away_is_lifted_to_what_its_class_has_had():
    """Guards against saved-up service, and against lifts to a class that is served more."""
    queue, counters = queue_of(Waiting("busy"), Waiting("idler", priority=BATCH))
    counters.charge("busy", input_tokens=500)
    counters.chosen("busy", Priority.STANDARD)
    queue.push(Waiting("new"))
    assert counters.value("new") == 500
    queue.push(Waiting("newer", priority=BATCH))
    assert counters.value("newer") == 0


def test_so_is_the_first_to_come_to_an_empty_queue():
    """Guards against service saved up while the queue was empty for a moment."""
    queue, counters = queue_of()
    counters.charge("busy", input_tokens=500)
    counters.chosen("busy", Priority.STANDARD)
    queue.push(Waiting("new"))
    assert counters.value("new") == 500


def test_what_a_replica_refused_is_the_first_of_its_tenant_again():
    a, b = Waiting(), Waiting()
    queue, _ = queue_of(a, b)
    queue.remove(a)
    queue.push_front(a)
    assert served(queue) == [a, b]


def test_each_tenants_first_is_a_head_unless_nobody_may_overtake():
    a, b, c = Waiting("a"), Waiting("a"), Waiting("c")
    queue, counters = queue_of(a, b, c)
    counters.charge("a", input_tokens=5)
    assert list(queue.heads(0.0)) == [c, a]
    queue, _ = queue_of(a, b, c, fair=False)
    assert list(queue.heads(0.0)) == [a]


def test_work_that_was_under_way_goes_before_all_in_order_of_coming():
    item, one, two = Waiting(priority=INTERACTIVE), Waiting(priority=BATCH), Waiting()
    queue, _ = queue_of(item)
    queue.push_first(one)
    queue.push_first(two)
    assert list(queue.backlogged()) == ["t"] and queue.queued_of("t") == 1
    assert len(queue) == 3
    assert served(queue) == [one, two, item]


def test_what_is_too_late_leaves_the_earliest_first():
    a, b, c = Waiting(expires_at=9.0), Waiting(expires_at=5.0), Waiting()
    queue, _ = queue_of(a, b, c)
    assert queue.expired(4.9) == []
    assert queue.expired(9.0) == [b, a]
    assert served(queue) == [c]


def test_an_item_cannot_be_queued_twice_and_leaves_no_trace_of_the_attempt():
    item = Waiting()
    queue, _ = queue_of(item)
    with pytest.raises(ValueError, match="already"):
        queue.push_first(item)
    assert (len(queue), queue.num_tokens) == (1, 10)


def test_an_item_that_comes_back_does_not_expire_by_its_former_stay():
    item = Waiting(expires_at=5.0)
    queue, _ = queue_of(item)
    queue.remove(item)
    queue.push_front(item)
    assert queue.expired(6.0) == [item]
    assert queue.expired(6.0) == []


def test_memory_is_bounded_by_what_waits():
    queue, _ = queue_of(Waiting("stays"))
    for _ in range(2000):
        item = Waiting("passes", expires_at=1e9)
        queue.push(item)
        queue.remove(item)
    assert len(queue._alarms) < 100
    assert list(queue.backlogged()) == ["stays"]


def test_ahead_of_a_newcomer_are_higher_classes_and_its_share_of_its_own():
    queue, _ = queue_of(
        *(Waiting("own") for _ in range(3)),
        *(Waiting("long") for _ in range(10)),
        *(Waiting("heavy", weight=2.0) for _ in range(10)),
        *(Waiting("short") for _ in range(2)),
        Waiting("high", 700, priority=INTERACTIVE, n=2),
        Waiting("low", priority=BATCH),
    )
    queue.push_first(Waiting(num_tokens=100))
    sequences = 1 + 2 + 3 + 4 + 8 + 2
    assert queue.ahead(STANDARD, "own", 1.0, 0.0) == (sequences, 800 + 10 * (sequences - 3))
    assert queue.ahead(STANDARD, "new", 1.0, 0.0) == (3 + 1 + 1 + 2 + 1, 800 + 10 * 5)


def test_ahead_of_a_newcomer_is_everybody_without_fairness():
    queue, _ = queue_of(*(Waiting("a") for _ in range(5)), Waiting(priority=BATCH), fair=False)
    assert queue.ahead(STANDARD, "new", 1.0, 0.0) == (5, 50)
    assert queue.ahead(INTERACTIVE, "new", 1.0, 0.0) == (0, 0)


def test_the_late_go_behind_all_classes_and_keep_their_order():
    a, b, quick = Waiting(), Waiting(), Waiting(queued_at=1.5)
    other, low = Waiting("u", priority=INTERACTIVE), Waiting(priority=BATCH, queued_at=1.5)
    queue, counters = queue_of(a, b, other, quick, low)
    counters.charge("u", input_tokens=1)
    queue.demote(2.0, 1.0)
    assert set(queue.backlogged()) == {"t", "u"} and queue.queued_of("t") == 4
    assert queue.backlogged()["t"] is a
    assert served(queue, 2.0) == [quick, low, a, b, other]


def test_the_late_rise_with_their_age():
    late, low = Waiting(priority=INTERACTIVE), Waiting("u", priority=BATCH, queued_at=20.0)
    queue, counters = queue_of(late, low)
    counters.charge("t", input_tokens=1)
    queue.demote(19.0, 1.0)
    assert queue.next(19.0) is low
    assert queue.next(20.0) is low, "of one level, and its tenant was served less"
    assert queue.next(39.0) is low
    queue.remove(low)
    queue.push(Waiting("u", priority=STANDARD, queued_at=40.0))
    assert queue.next(59.0).tenant == "u"
    queue.push(newcomer := Waiting("u", priority=INTERACTIVE, queued_at=60.0))
    counters.charge("u", input_tokens=100)
    assert queue.next(60.0) is late
    assert newcomer in queue


def test_ahead_of_a_newcomer_are_late_ones_only_when_they_have_risen():
    queue, _ = queue_of(Waiting(), Waiting(queued_at=10.0), fair=False)
    queue.demote(12.0, 1.0)
    assert queue.ahead(BATCH, "new", 1.0, 12.0) == (0, 0)
    assert queue.ahead(BATCH, "new", 1.0, 20.0) == (1, 10)
    assert queue.ahead(STANDARD, "new", 1.0, 35.0) == (0, 0)
    assert queue.ahead(BATCH, "new", 1.0, 35.0) == (2, 20)


@pytest.mark.parametrize("fair", [True, False])
def test_every_other_turn_is_for_the_late_however_many_others_come(fair):
    late = [Waiting("late", priority=each) for each in (BATCH, STANDARD, STANDARD)]
    queue, _ = queue_of(*late, fair=fair)
    queue.demote(5.0, 1.0)
    order = []
    for turn in range(6):
        queue.push(Waiting(f"newcomer {turn}", priority=INTERACTIVE, queued_at=5.0))
        item = queue.next(5.0)
        queue.remove(item, served=True)
        order.append(item)
    served_late = [turn for turn, item in enumerate(order) if item in late]
    assert served_late == [1, 3, 5]
    assert [order[turn] for turn in served_late] == [late[1], late[2], late[0]]


def test_turns_without_anybody_late_do_not_count():
    queue, _ = queue_of(*(Waiting() for _ in range(8)))
    for _ in range(7):
        queue.remove(queue.next(0.0), served=True)
    queue.demote(5.0, 1.0)
    queue.push(newcomer := Waiting("u", queued_at=5.0))
    assert queue.next(5.0) is newcomer


def test_a_tenant_all_of_whose_items_are_late_is_not_lifted_as_if_it_had_been_away():
    queue, counters = queue_of(Waiting("busy"), Waiting("slow"))
    queue.demote(5.0, 1.0)
    counters.charge("busy", input_tokens=500)
    counters.chosen("busy", STANDARD)
    queue.push(Waiting("slow", queued_at=5.0))
    assert counters.value("slow") == 0


def test_what_was_refused_stays_before_the_late_ones_of_its_tenant():
    a, b, c = Waiting(), Waiting(), Waiting()
    queue, _ = queue_of(a, b, c)
    queue.remove(a)
    queue.remove(b)
    queue.demote(5.0, 1.0)
    queue.push_front(b)
    queue.push_front(a)
    queue.demote(5.0, 1.0)
    assert served(queue, 5.0) == [a, b, c]


def test_the_late_expire_like_others():
    a, b = Waiting(expires_at=9.0), Waiting()
    queue, _ = queue_of(a, b)
    queue.demote(5.0, 1.0)
    assert queue.expired(9.0) == [a]
    assert served(queue, 9.0) == [b] and queue.num_tokens == 0


def test_fairness_can_be_put_in_force_while_items_wait():
    a, b = Waiting("a"), Waiting("b")
    queue, counters = queue_of(a, b, fair=False)
    counters.charge("a", input_tokens=1)
    assert list(queue.heads(0.0)) == [a]
    queue.fair = True
    assert list(queue.heads(0.0)) == [b, a]


SEATS, LONGEST_PROMPT, LONGEST_OUTPUT = 8, 400, 60
BOUND = gap_bound(LONGEST_PROMPT, SEATS * LONGEST_OUTPUT)


def chat(rng: random.Random) -> tuple[int, int]:
    return rng.randint(5, 50), rng.randint(20, LONGEST_OUTPUT)


def summary(rng: random.Random) -> tuple[int, int]:
    return rng.randint(100, LONGEST_PROMPT), rng.randint(1, 10)


Sizes = Callable[[random.Random], tuple[int, int]]


def largest_gap(
    tenants: dict[str, tuple[float, int, Sizes]], *, fair: bool, steps: int = 4000
) -> float:
    """Between the weighted services of tenants that always have so many items queued."""
    rng = random.Random(7)
    queue, counters = queue_of(fair=fair)
    server = SeatedServer(counters, queue, SEATS)
    gap = 0.0
    for step in range(steps):
        for name, (weight, depth, sizes) in tenants.items():
            while queue.queued_of(name) < depth:
                queue.push(Waiting(name, *sizes(rng), weight=weight, queued_at=step))
        server.step(step)
        shares = [server.served[name] / weight for name, (weight, _, _) in tenants.items()]
        gap = max(gap, max(shares) - min(shares))
    return gap


@pytest.mark.parametrize(
    "tenants",
    [
        {"patient": (1.0, 8, chat), "flood": (1.0, 80, chat)},
        {"chat": (1.0, 8, chat), "summaries": (1.0, 8, summary)},
        {"small": (1.0, 8, chat), "large": (3.0, 24, chat), "bulk": (1.0, 50, summary)},
    ],
)
def test_backlogged_tenants_stay_within_the_bound_and_without_fairness_do_not(tenants):
    assert largest_gap(tenants, fair=True) <= BOUND
    assert largest_gap(tenants, fair=False) > 5 * BOUND


def test_a_tenant_that_comes_back_takes_its_share_and_no_more():
    rng = random.Random(3)
    queue, counters = queue_of()
    server = SeatedServer(counters, queue, SEATS)
    for step in range(4000):
        for name in ("steady", "returns") if step >= 2000 else ("steady",):
            while queue.queued_of(name) < 8:
                queue.push(Waiting(name, *chat(rng)))
        if step == 2000:
            server.served.clear()
        server.step(step)
    assert abs(server.served["steady"] - server.served["returns"]) <= BOUND


def cluster_gap(*, exchange_every: int | None, steps: int = 4000) -> float:
    """Three routers with a server each; only one tenant comes to all of them."""
    rng, exchange = random.Random(5), Exchange()
    comers = ("everywhere", "here"), ("everywhere", "there"), ("everywhere",)
    routers = []
    for number, _ in enumerate(comers):
        queue, counters = queue_of()
        admission = Admission(AdmissionLimits(10**9, 10**9, 10**9))
        share = SharedUse(counters, admission, queue)
        routers.append((str(number), SeatedServer(counters, queue, SEATS), admission, share))
    started = 0
    gap = 0.0
    for step in range(steps):
        for (name, server, admission, share), tenants in zip(routers, comers, strict=True):
            for tenant in tenants:
                while server.queue.queued_of(tenant) < 10:
                    server.queue.push(Waiting(tenant, *chat(rng)))
            for item in server.step(step):
                admission.started(Tenant(item.tenant), item.num_tokens, step)
                started += 1
                if exchange_every and started % exchange_every == 0:
                    share.apply(exchange.put(name, share.uses(step), step), step)
        total = [
            sum(server.served[tenant] for _, server, _, _ in routers)
            for tenant in ("everywhere", "here", "there")
        ]
        gap = max(gap, max(total) - min(total))
    return gap


def test_routers_that_exchange_what_they_served_share_fairly_between_them():
    """The bound holds with all seats in flight, and what is served between two exchanges."""
    exchange_every = 5
    between = 3 * exchange_every * (50 + 2 * LONGEST_OUTPUT)
    bound = gap_bound(LONGEST_PROMPT, 3 * SEATS * LONGEST_OUTPUT) + between
    assert cluster_gap(exchange_every=exchange_every) <= bound
    assert cluster_gap(exchange_every=None) > 5 * bound
