"""What is found without looking at all lines is what looking at all of them would find."""

import math
import random

from chairlift.cluster.fairness import VirtualCounters
from chairlift.cluster.protocol import Priority
from chairlift.router.fair_queue import FairQueue
from support.queueing import Waiting

STANDARD = Priority.STANDARD


def queue_of(*items: Waiting) -> tuple[FairQueue[Waiting], VirtualCounters]:
    counters = VirtualCounters()
    queue: FairQueue[Waiting] = FairQueue(counters, fair=True, promote_after_s=20.0)
    for item in items:
        queue.push(item)
    return queue, counters


def test_what_is_ahead_is_each_tenants_share_of_its_line():
    """Summed over all tenants one by one; the queue sums over those that have as many."""
    dice = random.Random(3)
    queue, _ = queue_of()
    held: dict[tuple[str, Priority], list[Waiting]] = {}
    weights = {f"t{index}": dice.choice([0.5, 1.0, 2.0]) for index in range(12)}
    for _ in range(300):
        tenant, priority = dice.choice([*weights]), dice.choice([*Priority])
        line = held.setdefault((tenant, priority), [])
        if line and dice.random() < 0.4:
            queue.remove(line.pop(dice.randrange(len(line))))
        else:
            item = Waiting(tenant, priority=priority, weight=weights[tenant], n=dice.randint(1, 3))
            line.append(item)
            queue.push(item)
        tenant, priority = dice.choice([*weights, "new"]), dice.choice([*Priority])
        weight = weights.get(tenant, 1.0)
        own = sum(item.n for item in held.get((tenant, priority), ()))
        turns, expected = (1 + own) / weight, 0.0
        for (name, level), line in held.items():
            sequences = sum(item.n for item in line)
            if level < priority or (level == priority and name == tenant):
                expected += sequences
            elif level == priority and line:
                expected += min(sequences, turns * weights[name])
        assert queue.ahead(priority, tenant, weight, 0.0)[0] == math.ceil(expected - 1e-9)


def test_a_refund_and_a_higher_weight_bring_a_tenant_forward_at_once():
    a, b = Waiting("a"), Waiting("b")
    queue, counters = queue_of(a, b)
    counters.charge("a", input_tokens=10)
    counters.charge("b", input_tokens=12)
    assert queue.next(0.0) is a
    counters.charge("b", input_tokens=-5)
    assert queue.next(0.0) is b
    counters.charge("b", input_tokens=13)  # 20 to 10
    assert queue.next(0.0) is a
    counters.arrive("b", 4.0, STANDARD, waits=True)  # 20 of weight 4
    assert queue.next(0.0) is b
