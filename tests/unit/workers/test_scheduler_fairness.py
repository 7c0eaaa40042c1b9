"""Who gets seats, and who gives up blocks, where there are tenants and classes."""

from collections import Counter

from chairlift.cluster.fairness import service
from chairlift.cluster.protocol import Controls, FinishReason, Priority
from chairlift.workers.sequence import Sequence, SequenceKey
from support.benches import Bench, output_of
from support.engines import alone, sequence

URGENT, LATER = Priority.INTERACTIVE, Priority.BATCH


def crowd(tenants: str, **fields) -> list[Sequence]:
    return [sequence(i, tenant=tenant, **fields) for i, tenant in enumerate(tenants)]


class TestSeats:
    def test_those_that_are_free_together_are_shared(self):
        bench = Bench(max_sequences=4)
        assert sorted(bench.admit(*crowd("aaaaaabb"))) == [0, 1, 6, 7]

    def test_they_are_shared_by_weight(self):
        bench = Bench(max_sequences=6)
        made = [sequence(i, tenant="ab"[i % 2], weight=[1.0, 2.0][i % 2]) for i in range(12)]
        admitted = bench.admit(*made)
        assert Counter(made[i].tenant for i in admitted) == {"a": 2, "b": 4}

    def test_without_fairness_they_go_by_arrival(self):
        bench = Bench(max_sequences=4, fair=False)
        assert bench.admit(*crowd("aaaaaabb")) == [0, 1, 2, 3]

    def test_fairness_is_switched_live(self):
        bench = Bench(max_sequences=1)
        bench.admit(*crowd("aaab", max_tokens=1))
        bench.scheduler.set_controls(Controls(version=1, max_sequences=1, fair=False))
        bench.turn()
        assert bench.running() == [1]
        bench.scheduler.set_controls(Controls(version=2, max_sequences=1, fair=True))
        bench.turn()
        assert bench.running() == [3]

    def test_a_higher_class_is_next_but_nobody_loses_a_seat_for_it(self):
        bench = Bench(max_sequences=2)
        low = [sequence(i, priority=LATER, max_tokens=i + 2) for i in range(3)]
        bench.admit(*low)
        bench.turn()
        assert bench.admit(sequence(3, priority=URGENT)) == []
        assert bench.waiting() == [3, 2]
        bench.turn()
        assert bench.running() == [3, 1]
        assert bench.scheduler.load(0).preemptions == 0

    def test_a_higher_class_goes_first_in_the_step(self):
        bench = Bench()
        bench.admit(sequence(0, range(5), priority=LATER), sequence(1, range(6)))
        bench.scheduler.set_controls(Controls(version=1, token_budget=7))
        assert bench.turn()[0] == [(1, 0, 6), (0, 0, 1)]


class TestCharges:
    def value(self, bench: Bench, tenant: str) -> float:
        return bench.scheduler.counters.value(tenant)

    def test_prompt_at_admission_and_output_as_it_comes(self):
        bench = Bench(max_sequences=1)
        bench.admit(sequence(0, range(5), tenant="a", max_tokens=3), sequence(1, tenant="b"))
        assert (self.value(bench, "a"), self.value(bench, "b")) == (service(5, 0), 0)
        bench.turn(), bench.turn()
        assert self.value(bench, "a") == service(5, 2)

    def test_what_the_cache_had_is_not_charged(self):
        bench = Bench(prefix_cache=True)
        bench.admit(sequence(0, range(10), tenant="a", max_tokens=1))
        bench.turn()
        bench.admit(sequence(1, range(10), tenant="b", max_tokens=1))
        assert self.value(bench, "b") == service(10 - 8, 0)

    def test_nothing_is_charged_again_after_a_preemption(self):
        bench = Bench(blocks=6, block_size=2, max_sequences=3)
        made = [sequence(i, range(3), tenant="abc"[i], max_tokens=8) for i in range(3)]
        bench.admit(*made)
        bench.turns_until_idle()
        assert bench.scheduler.load(0).preemptions > 0
        assert [self.value(bench, tenant) for tenant in "abc"] == [service(3, 8)] * 3

    def test_what_was_paid_elsewhere_is_not_charged(self):
        bench = Bench()
        bench.admit(sequence(0, range(5), tenant="a", output=(1, 2), max_tokens=3))
        assert self.value(bench, "a") == 0
        bench.turn()
        assert self.value(bench, "a") == service(0, 1)

    def test_a_step_that_failed_or_was_cancelled_is_not_charged(self):
        bench = Bench()
        bench.admit(sequence(0, tenant="a"), sequence(1, tenant="b"))
        bench.scheduler.retire(bench.scheduler.plan(), None, [SequenceKey(0, 1)])
        assert self.value(bench, "a") == self.value(bench, "b") == service(3, 0)


class TestPreemption:
    def squeeze(self, *made: Sequence, blocks: int) -> list[int]:
        """Let all run until one is preempted; returns the victims of that step."""
        bench = Bench(blocks=blocks, block_size=2, max_sequences=len(made))
        assert len(bench.admit(*made)) == len(made)
        while not bench.plan.preempted:
            bench.turn()
        return [each.arrival for each in bench.plan.preempted]

    def test_the_lowest_class_yields(self):
        made = [
            sequence(0, priority=LATER, max_tokens=9),
            sequence(1, max_tokens=9),
            sequence(2, max_tokens=9),
        ]
        assert self.squeeze(*made, blocks=7) == [0]

    def test_in_it_the_tenant_that_was_served_most(self):
        made = crowd("abbc", max_tokens=9)
        assert self.squeeze(*made, blocks=9) == [2]

    def test_of_its_sequences_the_newest(self):
        made = crowd("abbb", max_tokens=9)
        assert self.squeeze(*made, blocks=9) == [3]

    def test_the_first_never_yields_although_it_was_served_most(self):
        made = crowd("aab", max_tokens=9)
        made[0] = sequence(0, range(6), tenant="a", max_tokens=9)
        assert self.squeeze(*made, blocks=9) == [1]

    def test_a_low_class_yields_itself_rather_than_one_that_stands_before_it(self):
        bench = Bench(blocks=4, block_size=2, max_sequences=2)
        bench.admit(sequence(0, range(2), priority=LATER, max_tokens=4))
        bench.turn()
        bench.admit(sequence(1, range(2), priority=URGENT, max_tokens=5))
        assert bench.running() == [1, 0]
        for _ in range(3):
            bench.turn()
        assert bench.running() == [1] and bench.waiting() == [0]

    def test_equals_do_not_take_from_each_other_in_turn(self):
        """Each preemption makes the other one the less served; the order of seats decides."""
        bench = Bench(blocks=9, block_size=2, max_sequences=2)
        made = [sequence(i, range(3), tenant="ab"[i], max_tokens=14) for i in range(2)]
        bench.admit(*made)
        ended = bench.turns_until_idle()
        assert ended == dict.fromkeys(range(2), FinishReason.LENGTH)
        assert bench.scheduler.load(0).preemptions == 1
        for each in made:
            assert output_of(each) == alone(range(3), each.sampling)[0]


def test_two_tenants_are_served_alike_although_one_asks_for_far_more():
    bench = Bench(max_sequences=4, blocks=30)
    made = [sequence(i, range(4), tenant="a", max_tokens=6) for i in range(60)]
    made += [sequence(60 + i, range(4), tenant="b", max_tokens=6) for i in range(20)]
    bench.admit(*made)
    for _ in range(50):
        bench.turn()
    served = [bench.scheduler.counters.value(tenant) for tenant in "ab"]
    assert abs(served[0] - served[1]) <= 4 * service(4, 6)
    assert min(served) > 20 * service(4, 6) / 2
