import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chairlift.cluster.fairness import VirtualCounters
from chairlift.cluster.protocol import Priority
from chairlift.router.fair_queue import FairQueue
from support.queueing import Waiting

PROMOTE_AFTER_S = 10.0
LATE, LATE_TURN = 3, 2
TENANTS = "abc"
tenants = st.sampled_from(TENANTS)


class FairQueueMachine(RuleBasedStateMachine):
    """The queue does what lists would do, one for each tenant and class, and its late ones."""

    @initialize(fair=st.booleans())
    def build(self, fair: bool) -> None:
        self.fair = fair
        self.now = 0.0
        self.counters = VirtualCounters()
        self.queue: FairQueue[Waiting] = FairQueue(
            self.counters, fair=fair, promote_after_s=PROMOTE_AFTER_S
        )
        self.first: list[Waiting] = []
        self.lines: dict[tuple[str, Priority, bool], list[Waiting]] = {}
        self.arrivals: list[Waiting] = []  # who goes first of those that are equal otherwise
        self.out: list[Waiting] = []  # was served, and may come back
        self.times: dict[Priority, float] = {}
        self.passed_over = 0  # turns since one of the late was served

    def all_items(self) -> list[Waiting]:
        return self.first + [item for line in self.lines.values() for item in line]

    def drop(self, item: Waiting) -> None:
        for line in [self.first, *self.lines.values()]:
            if item in line:
                line.remove(item)
        self.arrivals.remove(item)
        self.lines = {key: line for key, line in self.lines.items() if line}

    @rule(
        tenant=tenants,
        priority=st.sampled_from(Priority),
        num_tokens=st.integers(1, 50),
        n=st.integers(1, 3),
        weight=st.sampled_from([0.5, 1.0, 3.0]),
        patience=st.sampled_from([0.0, 5.0, 40.0, float("inf")]),
    )
    def push(self, tenant, priority, num_tokens, n, weight, patience) -> None:
        item = Waiting(
            tenant, num_tokens, 1, priority, weight, n, self.now, expires_at=self.now + patience
        )
        alone = not any((tenant, priority, late) in self.lines for late in (False, True))
        self.counters.arrive(tenant, weight, priority, waits=True)  # takes over the weight
        before = self.counters.value(tenant)
        self.queue.push(item)
        if alone:
            time = self.times.get(priority, 0.0)
            assert self.counters.value(tenant) == pytest.approx(max(before, time))
        else:
            assert self.counters.value(tenant) == before
        self.lines.setdefault((tenant, priority, False), []).append(item)
        self.arrivals.append(item)

    @rule(tenant=tenants, tokens=st.integers(-5, 40))
    def charge(self, tenant: str, tokens: int) -> None:
        self.counters.charge(tenant, output_tokens=tokens)

    @rule(seconds=st.sampled_from([0.5, 5.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(after_s=st.sampled_from([0.0, 3.0, 15.0]))
    def demote(self, after_s: float) -> None:
        self.queue.demote(self.now, after_s)
        for (tenant, priority, late), line in list(self.lines.items()):
            if late:
                continue
            moved = list(itertools.takewhile(lambda x: self.now - x.queued_at > after_s, line))
            if moved:
                behind = self.lines.setdefault((tenant, priority, True), [])
                behind.extend(moved)
                behind.sort(key=self.arrivals.index)
                del line[: len(moved)]
        self.lines = {key: line for key, line in self.lines.items() if line}

    @precondition(lambda self: self.all_items())
    @rule()
    def serve(self) -> None:
        item = self.queue.next(self.now)
        late = [each for (*_, late), line in self.lines.items() if late for each in line]
        if late:
            self.passed_over = 0 if item in late else self.passed_over + 1
        value = self.counters.value(item.tenant)
        self.times[item.priority] = max(self.times.get(item.priority, 0.0), value)
        self.counters.chosen(item.tenant, item.priority)
        self.queue.remove(item, served=True)
        self.drop(item)
        self.out.append(item)

    @precondition(lambda self: self.out)
    @rule(data=st.data(), first=st.booleans())
    def come_back(self, data, first: bool) -> None:
        item = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        if first:
            self.queue.push_first(item)
            self.first.append(item)
            self.arrivals.append(item)
        else:
            self.queue.push_front(item)
            self.lines.setdefault((item.tenant, item.priority, False), []).insert(0, item)
            self.arrivals.insert(0, item)

    @precondition(lambda self: self.all_items())
    @rule(data=st.data())
    def cancel(self, data) -> None:
        item = data.draw(st.sampled_from(self.all_items()))
        self.queue.remove(item)
        self.drop(item)

    @rule()
    def expire(self) -> None:
        expired = self.queue.expired(self.now)
        due = [item for item in self.all_items() if item.expires_at <= self.now]
        assert set(map(id, expired)) == set(map(id, due))
        assert [item.expires_at for item in expired] == sorted(item.expires_at for item in due)
        for item in due:
            self.drop(item)

    def level(self, item: Waiting, late: bool) -> int:
        risen = int((self.now - item.queued_at) // PROMOTE_AFTER_S)
        return max(0, (LATE if late else item.priority) - risen)

    @invariant()
    def the_best_head_is_next(self) -> None:
        ranks = []
        turn = self.passed_over >= LATE_TURN - 1
        for (tenant, priority, late), line in self.lines.items():
            value = self.counters.value(tenant) if self.fair else 0.0
            level = priority - LATE if late and turn else self.level(line[0], late)
            ranks.append((level, value, self.arrivals.index(line[0]), line[0]))
        best = min(ranks, key=lambda rank: rank[:3], default=(None,))[-1]
        assert self.queue.next(self.now) is (self.first[0] if self.first else best)

    @invariant()
    def the_sums_are_those_of_the_items(self) -> None:
        items = self.all_items()
        assert len(self.queue) == len(items)
        assert self.queue.num_sequences == sum(item.n for item in items)
        assert self.queue.num_tokens == sum(item.num_tokens for item in items)
        assert all(item in self.queue for item in items)
        assert not any(item in self.queue for item in self.out)
        assert set(self.queue.backlogged()) == {tenant for tenant, *_ in self.lines}
        for tenant in TENANTS:
            own = [line for (name, *_), line in self.lines.items() if name == tenant]
            assert self.queue.queued_of(tenant) == sum(map(len, own))

    @invariant()
    def nobody_is_ahead_who_waits_below(self) -> None:
        for priority in Priority:
            most = list(self.first)
            for (_, own, late), line in self.lines.items():
                if late:
                    levels = [self.level(item, True) for item in line]
                    risen = itertools.takewhile(lambda level, top=priority: level <= top, levels)
                    most += line[: len(list(risen))]
                elif own <= priority:
                    most += line
            sequences, tokens = self.queue.ahead(priority, "a", 1.0, self.now)
            if not self.fair:
                assert sequences == sum(item.n for item in most)
                assert tokens == sum(item.num_tokens for item in most)
            assert sequences <= sum(item.n for item in most)
            assert tokens <= sum(item.num_tokens for item in most)


TestFairQueue = FairQueueMachine.TestCase


@given(
    comers=st.lists(st.tuples(tenants, st.sampled_from(Priority)), min_size=1, max_size=120),
    rate=st.integers(1, 4),
    after_s=st.sampled_from([1.0, 15.0]),
    fair=st.booleans(),
)
def test_nobody_late_waits_behind_those_who_came_much_later(comers, rate, after_s, fair):
    """However many come, one item a second is served, and what has risen goes before them.

    But for the turns of the late, which go by class among them.
    """
    counters = VirtualCounters()
    queue: FairQueue[Waiting] = FairQueue(counters, fair=fair, promote_after_s=PROMOTE_AFTER_S)
    left, now = list(reversed(comers)), 0.0
    while left or len(queue):
        for _ in range(min(rate, len(left))):
            tenant, priority = left.pop()
            queue.push(Waiting(tenant, priority=priority, queued_at=now))
        queue.demote(now, after_s)
        item = queue.next(now)
        assert item is not None
        counters.chosen(item.tenant, item.priority)
        counters.charge(item.tenant, input_tokens=item.num_tokens)
        queue.remove(item, served=True)
        for other in queue.backlogged().values():
            if other.tenant == item.tenant or not fair:
                assert other.queued_at >= item.queued_at - LATE * PROMOTE_AFTER_S
        now += 1.0
