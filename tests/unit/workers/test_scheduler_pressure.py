"""What the scheduler says of the pressure that it is under, and room that is reserved."""

import pytest

from chairlift.cluster.protocol import ENDLESS, Controls
from support.benches import Bench
from support.engines import sequence


class TestReserve:
    def test_admits_only_whom_it_can_hold_to_the_end(self):
        bench = Bench(blocks=6, block_size=2, reserve=True)
        first, second = (sequence(i, range(3), max_tokens=5) for i in range(2))
        assert bench.admit(first, second) == [0]
        assert bench.turns_until_idle().keys() == {0, 1}
        assert first.preemptions == second.preemptions == 0

    def test_without_it_both_are_admitted_and_one_is_preempted(self):
        bench = Bench(blocks=6, block_size=2)
        first, second = (sequence(i, range(3), max_tokens=5) for i in range(2))
        assert bench.admit(first, second) == [0, 1]
        bench.turns_until_idle()
        assert (first.preemptions, second.preemptions) == (0, 1)

    def test_can_be_asked_for_while_more_runs_than_could_be_held(self):
        bench = Bench(blocks=6, block_size=2, max_sequences=3)
        made = [sequence(i, range(3), max_tokens=5) for i in range(3)]
        bench.admit(*made[:2])
        bench.turn()
        bench.scheduler.set_controls(
            Controls(version=1, token_budget=64, max_sequences=3, reserve=True)
        )
        assert bench.admit(made[2]) == []
        assert bench.turns_until_idle().keys() == {0, 1, 2}

    def test_a_sequence_that_fits_alone_is_never_refused_for_ever(self):
        bench = Bench(blocks=4, block_size=2, reserve=True)
        assert bench.admit(sequence(0, range(3), max_tokens=5)) == [0]


class TestSaturatedSteps:
    def test_are_those_after_which_somebody_waits(self):
        bench = Bench(max_sequences=1)
        bench.admit(sequence(0, max_tokens=3))
        bench.turn()
        assert bench.scheduler.load(1).steps_saturated == 0
        bench.scheduler.add([sequence(1, max_tokens=1)])
        bench.turn()
        assert bench.scheduler.load(2).steps_saturated == 1
        bench.turns_until_idle()
        assert bench.scheduler.load(3).steps_saturated == 1

    def test_are_those_in_which_the_budget_was_too_small_for_who_runs(self):
        bench = Bench()
        bench.admit(*(sequence(i) for i in range(3)))
        bench.turn()
        bench.scheduler.set_controls(Controls(version=1, token_budget=2, max_sequences=4))
        bench.turn()
        assert bench.scheduler.load(2).steps_saturated == 1


class TestRecomputedTokens:
    def test_are_what_a_preempted_sequence_computes_again(self):
        bench = Bench(blocks=4, block_size=2, max_sequences=2)
        old, new = (sequence(i, range(3), max_tokens=5) for i in range(2))
        bench.admit(old, new)
        bench.turns_until_idle()
        load = bench.scheduler.load(1)
        assert load.preemptions > 0
        # Each has a prompt of three and five outputs, of which the last is never computed.
        assert load.tokens_computed == 2 * 7 + load.tokens_recomputed
        assert load.tokens_recomputed > 0

    def test_are_none_where_nobody_was_preempted(self):
        bench = Bench()
        bench.admit(sequence(0, max_tokens=5))
        bench.turns_until_idle()
        assert bench.scheduler.load(1).tokens_recomputed == 0


class TestStepsLeft:
    def test_are_endless_where_all_fit_at_their_greatest_length(self):
        bench = Bench(blocks=8, block_size=2)
        bench.admit(sequence(0, range(3), max_tokens=13))
        bench.turn()
        assert bench.scheduler.load(1).steps_left == ENDLESS

    @pytest.mark.parametrize("blocks", [6, 7, 9])
    def test_say_when_blocks_will_be_short(self, blocks):
        bench = Bench(blocks=blocks, block_size=2)
        made = [sequence(i, range(3), max_tokens=20) for i in range(2)]
        # Only the first can have its 23 tokens if the second goes.
        bench.admit(*made)
        bench.turn()
        said = bench.scheduler.load(1).steps_left
        steps = 0
        while not bench.plan.preempted:
            bench.turn()
            steps += 1
        assert abs(steps - said) <= 2

    def test_are_endless_when_nothing_runs(self):
        assert Bench().scheduler.load(0).steps_left == ENDLESS
