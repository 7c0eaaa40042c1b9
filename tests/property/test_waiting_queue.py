"""The order of service, kept up step by step, is the one that the rule gives from nothing."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from chairlift.cluster.fairness import VirtualCounters, service
from chairlift.cluster.protocol import Priority
from chairlift.workers.sequence import Sequence
from chairlift.workers.waiting_queue import WaitingQueue
from support.engines import sequence

tenants = st.sampled_from("abcd")


def input_of(waiting: Sequence) -> int:
    return 0 if waiting.resumes else waiting.num_prompt


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.counters = VirtualCounters()
        self.queue = WaitingQueue(self.counters, True, input_of)
        self.fair = True
        self.waiting: list[Sequence] = []
        self.away: list[Sequence] = []
        self.arrival = 0

    def in_order(self) -> list[int]:
        """One after the other, each time the least of those who are left."""
        left, ahead, order = list(self.waiting), dict.fromkeys("abcd", 0.0), []

        def rank(each: Sequence) -> tuple:
            value = self.counters.value(each.tenant, ahead[each.tenant]) if self.fair else 0
            return each.priority, value, not each.resumes, each.arrival

        def head(each: Sequence) -> bool:
            own = [o for o in left if (o.tenant, o.priority) == (each.tenant, each.priority)]
            return each is min(own, key=lambda o: (not o.resumes, o.arrival))

        while left:
            following = min(filter(head, left), key=rank)
            left.remove(following)
            order.append(following.arrival)
            ahead[following.tenant] += service(input_of(following), 0)
        return order

    @rule(
        tenant=tenants,
        priority=st.sampled_from(Priority),
        length=st.integers(1, 9),
        weight=st.sampled_from([1.0, 1.0, 1.0, 2.0, 0.5]),
        output=st.sampled_from([(), (), (1,)]),
    )
    def arrive(self, tenant, priority, length, weight, output) -> None:
        made = sequence(
            self.arrival,
            range(length),
            tenant=tenant,
            priority=priority,
            weight=weight,
            output=output,
        )
        self.arrival += 1
        self.queue.arrive(made)
        self.waiting.append(made)

    @precondition(lambda self: self.waiting)
    @rule(count=st.integers(1, 3))
    def admit(self, count: int) -> None:
        chosen = [each for each, _ in zip(self.queue, range(count), strict=False)]
        for each in chosen:
            self.queue.remove(each)
            self.counters.chosen(each.tenant, each.priority)
            self.counters.charge(each.tenant, input_tokens=input_of(each))
            self.waiting.remove(each)
            self.away.append(each)

    @precondition(lambda self: self.waiting)
    @rule(index=st.integers(0, 99))
    def cancel(self, index: int) -> None:
        self.queue.remove(self.waiting.pop(index % len(self.waiting)))

    @precondition(lambda self: self.away)
    @rule(index=st.integers(0, 99))
    def preempt(self, index: int) -> None:
        victim = self.away.pop(index % len(self.away))
        victim.preemptions += 1
        self.queue.insert(victim)
        self.waiting.append(victim)

    @rule(tenant=tenants, tokens=st.integers(1, 9))
    def serve(self, tenant: str, tokens: int) -> None:
        self.counters.charge(tenant, output_tokens=tokens)

    @rule(fair=st.booleans())
    def set_fair(self, fair: bool) -> None:
        self.fair = fair
        self.queue.set_fair(fair)

    @rule()
    def peek(self) -> None:
        """Looks only at the first, as a step without a free seat does."""
        first = next(iter(self.queue), None)
        assert [first.arrival] == self.in_order()[:1] if first else not self.waiting

    @rule()
    def check_order(self) -> None:
        assert [each.arrival for each in self.queue] == self.in_order()

    @invariant()
    def all_are_counted(self) -> None:
        assert len(self.queue) == len(self.waiting)
        assert self.queue.num_tokens == sum(each.num_tokens for each in self.waiting)
        assert set(self.queue.sequences()) == set(self.waiting)

    def teardown(self) -> None:
        assert [each.arrival for each in self.queue] == self.in_order()


TestWaitingQueue = QueueMachine.TestCase
TestWaitingQueue.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
