import pytest

from chairlift.cluster.protocol import Batching, Controls, FinishReason
from chairlift.workers.sequence import SequenceKey, Status, StepResult
from support.benches import Bench, output_of
from support.engines import alone, sequence


class TestPlan:
    def test_computes_a_prompt_then_decodes(self):
        bench = Bench()
        bench.admit(sequence(0, range(5), max_tokens=3))
        shapes = [bench.turn()[0] for _ in range(4)]
        assert shapes == [[(0, 0, 5)], [(0, 5, 1)], [(0, 6, 1)], []]

    def test_decoding_goes_before_prompts(self):
        bench = Bench()
        bench.admit(sequence(0, range(5)))
        bench.turn()
        bench.admit(sequence(1, range(9)), sequence(2, range(3)))
        assert bench.turn()[0] == [(0, 5, 1), (1, 0, 9), (2, 0, 3)]

    def test_cuts_prompts_into_chunks_under_one_budget(self):
        bench = Bench(token_budget=8)
        bench.admit(sequence(0, range(5)))
        bench.turn()
        bench.admit(sequence(1, range(12)))
        shapes = [bench.turn()[0] for _ in range(3)]
        assert shapes == [
            [(0, 5, 1), (1, 0, 7)],
            [(0, 6, 1), (1, 7, 5)],
            [(0, 7, 1), (1, 12, 1)],
        ]

    def test_only_the_last_chunk_samples(self):
        bench = Bench(token_budget=4)
        bench.admit(sequence(0, range(10)))
        sampled = [len(bench.turn()[1]) for _ in range(3)]
        assert sampled == [0, 0, 1]

    def test_oldest_decode_when_the_budget_was_lowered_below_their_number(self):
        bench = Bench()
        bench.admit(*(sequence(i) for i in range(3)))
        bench.turn()
        bench.scheduler.set_controls(Controls(version=1, token_budget=2))
        assert bench.turn()[0] == [(0, 3, 1), (1, 3, 1)]

    def test_allocates_only_what_is_planned(self):
        bench = Bench(token_budget=4, block_size=2)
        bench.admit(sequence(0, range(9)))
        bench.turn()
        assert bench.pool.num_used == 2


class TestRefill:
    def test_a_waiting_sequence_takes_the_seat_of_one_that_ended_in_the_next_step(self):
        """The point of continuous batching: the long ones go on, the seat is never empty."""
        bench = Bench(max_sequences=2)
        long, short, late = (sequence(i, max_tokens=m) for i, m in enumerate((9, 2, 5)))
        bench.admit(long, short, late)
        assert bench.turn()[0] == [(0, 0, 3), (1, 0, 3)]
        shape_, outcomes = bench.turn()
        assert shape_ == [(0, 3, 1), (1, 3, 1)]
        assert outcomes[1].finish is FinishReason.LENGTH
        assert bench.turn()[0] == [(0, 4, 1), (2, 0, 3)]

    def test_does_not_give_away_blocks_that_a_running_prompt_will_need(self):
        """Otherwise a sequence is admitted only to be preempted by an older one."""
        bench = Bench(blocks=4, block_size=4, token_budget=4)
        bench.admit(sequence(0, range(12)))
        bench.turn()
        assert bench.pool.num_free == 3
        bench.scheduler.set_controls(Controls(version=1, token_budget=64))
        assert bench.admit(sequence(1, range(3))) == []

    def test_fewer_seats_end_nothing(self):
        bench = Bench()
        bench.admit(*(sequence(i, max_tokens=3) for i in range(4)))
        bench.scheduler.add([sequence(4)])
        bench.scheduler.set_controls(Controls(version=1, max_sequences=1))
        bench.turn()
        assert bench.running() == [0, 1, 2, 3]
        bench.turn(), bench.turn()
        assert bench.running() == [4]

    def test_only_newer_controls_come_into_force(self):
        bench = Bench()
        newer = Controls(version=5, token_budget=7)
        bench.scheduler.set_controls(newer)
        bench.scheduler.set_controls(Controls(version=4))
        bench.scheduler.set_controls(Controls(version=5))
        assert bench.scheduler.controls == newer


class TestPreemption:
    def test_the_newest_yields_and_waits_at_the_front(self):
        bench = Bench(blocks=4, block_size=2, max_sequences=2)
        old, new = sequence(0, range(3), max_tokens=5), sequence(1, range(3), max_tokens=5)
        bench.admit(old, new, sequence(2))
        bench.turn()
        assert bench.running() == [0, 1]
        shape_, _ = bench.turn()
        assert shape_ == [(0, 3, 1), (1, 3, 1)]
        assert bench.turn()[0] == [(0, 4, 1)]
        assert bench.running() == [0]
        assert bench.waiting() == [1, 2]
        assert (new.status, new.num_computed, new.blocks) == (Status.WAITING, 0, [])
        assert new.preemptions == bench.scheduler.load(0).preemptions == 1

    def test_tokens_are_those_of_an_undisturbed_run(self):
        bench = Bench(blocks=6, block_size=2, max_sequences=3)
        made = [sequence(i, range(i, i + 3), max_tokens=8) for i in range(5)]
        bench.admit(*made)
        ended = bench.turns_until_idle()
        assert bench.scheduler.load(0).preemptions > 0
        for each in made:
            expected = alone(each.tokens[: each.num_prompt], each.sampling)
            assert (output_of(each), ended[each.arrival]) == expected

    def test_a_victim_does_not_stay_in_the_plan(self):
        """Decoders are planned first, so a newer one stands in the plan when an older prompt
        needs its blocks."""
        bench = Bench(blocks=8, block_size=2)
        assert bench.admit(sequence(0, range(12)), sequence(1, range(1), max_tokens=15)) == [0, 1]
        bench.scheduler.set_controls(Controls(version=1, token_budget=3))
        for turn in range(5):
            assert bench.turn()[0] == [(1, turn, 1), (0, 2 * turn, 2)]
        assert bench.pool.num_free == 0
        assert bench.turn()[0] == [(0, 10, 2)]
        assert bench.waiting() == [1]

    def test_the_newest_itself_yields_rather_than_an_older_one(self):
        bench = Bench(blocks=3, block_size=2, max_sequences=2)
        bench.admit(sequence(0, range(1), max_tokens=5), sequence(1, range(3), max_tokens=3))
        bench.turn()
        bench.turn()
        assert bench.turn()[0] == [(0, 2, 1)]
        assert bench.waiting() == [1]


class TestStaticBatching:
    def test_seats_stay_empty_until_the_batch_is_over(self):
        bench = Bench(max_sequences=2, batching=Batching.STATIC)
        made = [sequence(i, max_tokens=m) for i, m in enumerate((5, 1, 2, 2))]
        assert bench.admit(*made) == [0, 1]
        bench.turn()
        assert bench.running() == [0] and bench.pool.num_used == 1
        for _ in range(3):
            assert [arrival for arrival, *_ in bench.turn()[0]] == [0]
            assert bench.running() == [0]
        bench.turn()
        assert bench.running() == [2, 3]

    def test_a_batch_is_never_preempted(self):
        bench = Bench(blocks=7, block_size=2, batching=Batching.STATIC)
        bench.admit(*(sequence(i, range(3), max_tokens=5) for i in range(6)))
        assert len(bench.turns_until_idle()) == 6
        assert bench.scheduler.load(0).preemptions == 0

    def test_sorted_batches_hold_similar_lengths(self):
        bench = Bench(max_sequences=2, batching=Batching.STATIC_SORTED)
        lengths = (2, 9, 3, 8)
        assert bench.admit(*(sequence(i, max_tokens=m) for i, m in enumerate(lengths))) == [0, 2]
        for _ in range(3):
            bench.turn()
        assert bench.running() == [1, 3]

    def test_switching_to_static_lets_what_runs_finish_first(self):
        bench = Bench(max_sequences=2)
        bench.admit(*(sequence(i, max_tokens=m) for i, m in enumerate((4, 1, 2, 2))))
        bench.scheduler.set_controls(Controls(1, Batching.STATIC, 64, 2))
        bench.turn()
        assert bench.running() == [0]
        for _ in range(3):
            bench.turn()
        assert bench.running() == [2, 3]

    def test_switching_to_continuous_fills_the_empty_seats_at_once(self):
        bench = Bench(max_sequences=2, batching=Batching.STATIC)
        bench.admit(*(sequence(i, max_tokens=m) for i, m in enumerate((4, 1, 2))))
        bench.turn()
        assert bench.running() == [0]
        bench.scheduler.set_controls(Controls(1, Batching.CONTINUOUS, 64, 2))
        bench.turn()
        assert bench.running() == [0, 2]

    def test_continuous_admissions_into_a_static_batch_may_preempt_and_still_end(self):
        bench = Bench(blocks=6, block_size=2, max_sequences=3, batching=Batching.STATIC)
        made = [sequence(i, range(3), max_tokens=8) for i in range(4)]
        bench.admit(*made)
        bench.turn()
        bench.scheduler.set_controls(Controls(1, Batching.CONTINUOUS, 64, 3))
        bench.turns_until_idle()
        assert bench.scheduler.load(0).preemptions > 0
        for each in made:
            assert output_of(each) == alone(range(3), each.sampling)[0]


class TestEndings:
    def test_end_token_ends_and_is_kept(self):
        first = alone((1, 2, 3), sequence(0).sampling)[0][0]
        bench = Bench(eos=[first])
        bench.admit(sequence(0))
        outcome = bench.turn()[1][0]
        assert (outcome.tokens, outcome.finish) == ((first,), FinishReason.STOP)
        assert bench.scheduler.num_open == bench.pool.num_used == 0

    def test_end_token_is_ignored_on_demand(self):
        first = alone((1, 2, 3), sequence(0).sampling)[0][0]
        bench = Bench(eos=[first])
        bench.admit(sequence(0, ignore_eos=True, max_tokens=2))
        assert bench.turn()[1][0].finish is None
        assert bench.turn()[1][0].finish is FinishReason.LENGTH

    def test_stop_token_ends_even_where_end_tokens_are_ignored(self):
        second = alone((1, 2, 3), sequence(0).sampling)[0][1]
        bench = Bench()
        bench.admit(sequence(0, ignore_eos=True, stop_token_ids=(second,)))
        assert bench.turn()[1][0].finish is None
        assert bench.turn()[1][0].finish is FinishReason.STOP

    def test_stop_wins_over_length_at_the_last_token(self):
        first = alone((1, 2, 3), sequence(0).sampling)[0][0]
        bench = Bench()
        bench.admit(sequence(0, max_tokens=1, stop_token_ids=(first,)))
        assert bench.turn()[1][0].finish is FinishReason.STOP

    def test_cancelling_the_waiting_and_the_running_frees_all(self):
        bench = Bench(max_sequences=1)
        bench.admit(sequence(0), sequence(1))
        bench.turn()
        outcomes = bench.scheduler.cancel([SequenceKey(0, 1), SequenceKey(0, 0)])
        assert [(o.key.handle, o.tokens, o.finish) for o in outcomes] == [
            (1, (), FinishReason.CANCELLED),
            (0, (), FinishReason.CANCELLED),
        ]
        assert bench.scheduler.num_open == bench.pool.num_used == 0
        assert bench.turn() == ([], {})

    def test_cancelling_the_unknown_and_the_same_twice_is_harmless(self):
        bench = Bench()
        bench.admit(sequence(0))
        key = SequenceKey(0, 0)
        assert len(bench.scheduler.cancel([SequenceKey(0, 9), key, key])) == 1
        assert bench.scheduler.cancel([key]) == []

    def test_a_sequence_cancelled_during_the_step_emits_nothing(self):
        bench = Bench()
        bench.admit(sequence(0, (1, 2)), sequence(1, (3, 4)))
        _, outcomes = bench.turn(cancelled=[SequenceKey(0, 0)])
        assert (outcomes[0].tokens, outcomes[0].finish) == ((), FinishReason.CANCELLED)
        assert outcomes[1].tokens == alone((3, 4), sequence(1).sampling)[0][:1]

    def test_a_failed_step_ends_what_it_ran_and_nothing_else(self):
        bench = Bench()
        spared = sequence(2)
        bench.admit(sequence(0), sequence(1), spared)
        bench.turn()
        bench.scheduler.set_controls(Controls(version=1, token_budget=2))
        plan = bench.scheduler.plan()
        outcomes = bench.scheduler.retire(plan, None, [SequenceKey(0, 0)])
        assert [(o.key.handle, o.tokens, o.finish) for o in outcomes] == [
            (0, (), FinishReason.CANCELLED),
            (1, (), FinishReason.FAILED),
        ]
        assert bench.turns_until_idle() == {2: FinishReason.LENGTH}
        assert output_of(spared) == alone((1, 2, 3), spared.sampling)[0]


def test_load_tells_the_state_in_numbers():
    bench = Bench(token_budget=8, max_sequences=2)
    bench.admit(sequence(0, range(4)))
    bench.turn()
    bench.admit(sequence(1, range(10)), sequence(2, range(5)))
    bench.turn()
    load = bench.scheduler.load(step=7)
    assert (load.step, load.running, load.waiting) == (7, 2, 1)
    assert load.waiting_tokens == 3 + 5
    assert (load.blocks_used, load.blocks_total) == (4, 100)
    assert (load.tokens_computed, load.tokens_generated) == (4 + 8, 2)


def test_integrity_check_finds_a_lost_block():
    bench = Bench()
    bench.admit(sequence(0))
    plan = bench.scheduler.plan()
    bench.scheduler.retire(plan, StepResult([5]), ())
    bench.scheduler.running[0].blocks.pop()
    with pytest.raises(RuntimeError, match="block tables"):
        bench.scheduler.check_integrity()
