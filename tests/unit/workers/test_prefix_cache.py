import dataclasses

import pytest

from chairlift.cluster.protocol import Batching, Controls, FinishReason
from chairlift.workers.decisions import Reason, SequenceKey
from chairlift.workers.sequence import Sequence
from support.benches import Bench, output_of
from support.engines import alone, sequence


def caching(**changes) -> Bench:
    return Bench(prefix_cache=True, **changes)


def run(bench: Bench, *sequences: Sequence) -> int:
    """Run these to their end, check their tokens, and return how many tokens that computed."""
    before = bench.scheduler.load(0).tokens_computed
    bench.admit(*sequences)
    bench.turns_until_idle()
    for each in sequences:
        expected, _ = alone(each.tokens[: each.num_prompt], each.sampling, each.choice)
        assert output_of(each) == expected
    return bench.scheduler.load(0).tokens_computed - before


def choices(count: int, prompt, **sampling) -> list[Sequence]:
    made = [sequence(i, prompt, **sampling) for i in range(count)]
    return [dataclasses.replace(each, choice=i) for i, each in enumerate(made)]


class TestReuse:
    def test_a_warm_prompt_is_computed_from_its_last_block_on(self):
        bench = caching()
        assert run(bench, sequence(0, range(11), max_tokens=1)) == 11
        assert run(bench, sequence(1, range(11), max_tokens=1)) == 3

    def test_one_token_is_left_to_compute_though_every_block_is_known(self):
        bench = caching()
        assert run(bench, sequence(0, range(8), max_tokens=1)) == 8
        assert run(bench, sequence(1, range(8), max_tokens=1)) == 4

    def test_output_is_reused_as_the_start_of_the_next_turn(self):
        bench = caching()
        first = sequence(0, range(6), max_tokens=7)
        run(bench, first)
        assert run(bench, sequence(1, [*first.tokens, 1, 2, 3], max_tokens=1)) == 16 - 12

    def test_prompts_share_up_to_where_they_differ(self):
        bench = caching()
        run(bench, sequence(0, range(12), max_tokens=1))
        assert run(bench, sequence(1, [*range(6), 99, *range(7, 12)], max_tokens=1)) == 12 - 4

    def test_equal_tokens_after_another_start_are_not_shared(self):
        """K and V depend on the whole prefix, not on the tokens of the block alone."""
        bench = caching()
        run(bench, sequence(0, [1, 2, 3, 4, 5, 6, 7, 8], max_tokens=1))
        assert run(bench, sequence(1, [9, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=1)) == 9

    def test_salts_do_not_share(self):
        bench = caching()
        assert run(bench, sequence(0, range(9), salt="a", max_tokens=1)) == 9
        assert run(bench, sequence(1, range(9), salt="b", max_tokens=1)) == 9
        assert run(bench, sequence(2, range(9), max_tokens=1)) == 9
        assert run(bench, sequence(3, range(9), salt="a", max_tokens=1)) == 1

    def test_log_probabilities_of_the_prompt_need_every_row_but_leave_their_blocks(self):
        bench = caching()
        run(bench, sequence(0, range(9), max_tokens=1))
        assert run(bench, sequence(1, range(9), max_tokens=1, prompt_logprobs=0)) == 9
        bench = caching()
        run(bench, sequence(0, range(9), max_tokens=1, prompt_logprobs=0))
        assert run(bench, sequence(1, range(9), max_tokens=1)) == 1

    def test_switched_off_nothing_is_shared(self):
        bench = Bench(prefix_cache=False)
        assert run(bench, *choices(2, range(9), max_tokens=1)) == 18
        assert run(bench, sequence(2, range(9), max_tokens=1)) == 9

    def test_a_failed_step_leaves_nothing_behind(self):
        """Its blocks may hold anything."""
        bench = caching()
        bench.admit(sequence(0, range(9)))
        bench.scheduler.retire(bench.scheduler.plan(), None, ())
        assert run(bench, sequence(1, range(9), max_tokens=1)) == 9

    def test_a_sequence_cancelled_during_its_step_leaves_nothing_behind(self):
        bench = caching()
        bench.admit(sequence(0, range(9)))
        bench.turn(cancelled=[SequenceKey(0, 0)])
        assert run(bench, sequence(1, range(9), max_tokens=1)) == 9


class TestSharingUnderWay:
    def test_choices_compute_their_prefix_once(self):
        bench = caching()
        bench.admit(*choices(4, range(11), max_tokens=2))
        assert bench.turn()[0] == [(0, 0, 11)]
        assert [(t.key.handle, t.reason, t.count) for t in bench.plan.turned_down] == [
            (1, Reason.SHARED_PREFIX, 3)
        ]
        assert bench.turn()[0] == [(0, 11, 1), (1, 8, 3), (2, 8, 3), (3, 8, 3)]
        assert bench.pool.num_used == 2 + 3

    def test_a_burst_with_one_system_prompt_computes_it_once(self):
        bench = caching(max_sequences=8, token_budget=512)
        system = list(range(40))
        made = [sequence(i, [*system, 100 + i, 200], max_tokens=1) for i in range(8)]
        assert run(bench, *made) == 40 + 8 * 2

    @pytest.mark.parametrize("budget", [1, 3, 5, 8])
    def test_a_prefix_in_chunks_is_still_computed_once(self, budget):
        """Chunks end within blocks, and those behind wait at the block's start."""
        bench = caching(token_budget=budget)
        bench.admit(*choices(3, range(21), max_tokens=1))
        bench.scheduler.set_controls(Controls(1, token_budget=budget, max_sequences=4))
        bench.turns_until_idle()
        assert bench.scheduler.load(0).tokens_computed == 21 + 2 * 1

    def test_prefixes_of_other_salts_do_not_wait(self):
        bench = caching()
        bench.admit(sequence(0, range(9), salt="a"), sequence(1, range(9), salt="b"))
        assert bench.turn()[0] == [(0, 0, 9), (1, 0, 9)]

    def test_who_waited_for_one_that_failed_computes_it_itself(self):
        bench = caching()
        bench.admit(*choices(2, range(9), max_tokens=1))
        bench.scheduler.retire(bench.scheduler.plan(), None, ())
        assert bench.turns_until_idle() == {1: FinishReason.LENGTH}

    def test_twins_that_fill_the_same_block_one_after_the_other_keep_a_copy_each(self):
        """Only full blocks are shared, so the second one has begun its own by then."""
        bench = caching()
        twins = [sequence(i, range(7), max_tokens=6) for i in range(2)]
        assert run(bench, *twins) == 2 * 12 - 4
        assert run(bench, sequence(2, twins[0].tokens, max_tokens=1)) == 1

    def test_what_others_read_survives_the_end_of_who_computed_it(self):
        bench = caching(blocks=8)
        short, long = sequence(0, range(9), max_tokens=1), sequence(1, range(9), max_tokens=12)
        bench.admit(short, long)
        bench.turn()
        assert bench.running() == [1]
        bench.turns_until_idle()
        assert output_of(long) == alone(range(9), long.sampling)[0]


class TestRoom:
    def test_unused_cached_blocks_count_as_free(self):
        bench = caching(blocks=4)
        run(bench, sequence(0, range(12), max_tokens=1))
        assert bench.pool.num_free == 4
        assert bench.scheduler.load(0).blocks_used == 0
        assert run(bench, sequence(1, range(50, 65), max_tokens=1)) == 15

    def test_admission_needs_no_room_for_blocks_that_are_in_use(self):
        bench = caching(blocks=6)
        bench.admit(sequence(0, range(17), max_tokens=3))
        bench.turn()
        assert bench.pool.num_free == 1
        assert bench.admit(sequence(1, range(17), max_tokens=3)) == [1]
        assert bench.turn()[0] == [(0, 17, 1), (1, 16, 1)]

    def test_admission_needs_room_for_blocks_that_nobody_uses(self):
        """They count as free until they are taken, and must not be given away twice."""
        bench = caching(blocks=6)
        run(bench, sequence(0, range(9), max_tokens=1))
        bench.admit(sequence(1, range(50, 62), max_tokens=6))
        assert bench.pool.num_free == 6
        assert bench.admit(sequence(2, range(9), max_tokens=1)) == []
        assert [t.reason for t in bench.admission.turned_down] == [Reason.NO_BLOCKS]

    def test_what_was_let_go_of_longest_ago_makes_room_first(self):
        bench = caching(blocks=6)
        run(bench, sequence(0, range(9), max_tokens=1))
        run(bench, sequence(1, range(50, 59), max_tokens=1))
        run(bench, sequence(2, range(9), max_tokens=1))  # used once more
        run(bench, sequence(3, range(80, 95), max_tokens=1))  # needs 4: 2 are free, 2 of the 50s
        assert run(bench, sequence(4, range(9), max_tokens=1)) == 1
        assert run(bench, sequence(5, range(50, 59), max_tokens=1)) == 9

    def test_a_chain_is_forgotten_from_its_end(self):
        """Without its first block nothing of it could be found."""
        bench = caching(blocks=5)
        run(bench, sequence(0, range(17), max_tokens=1))
        run(bench, sequence(1, range(80, 89), max_tokens=1))  # takes 3, of which 1 is free
        assert run(bench, sequence(2, range(17), max_tokens=1)) == 17 - 8

    def test_the_preempted_find_their_blocks_again(self):
        bench = caching(blocks=8, block_size=2, max_sequences=2)
        old, new = sequence(0, range(4), max_tokens=6), sequence(1, range(50, 56), max_tokens=6)
        bench.admit(old, new)
        while not bench.plan.preempted:
            bench.turn()
        assert bench.plan.preempted == (new,)
        computed = []
        while new.finish is None:
            shape, _ = bench.turn()
            computed += [(start, count) for arrival, start, count in shape if arrival == 1]
        assert computed[0][0] > 0
        assert output_of(new) == alone(range(50, 56), new.sampling)[0]

    @pytest.mark.parametrize("batching", [Batching.STATIC, Batching.STATIC_SORTED])
    def test_static_batches_share_and_are_never_preempted(self, batching):
        bench = caching(blocks=9, block_size=2, batching=batching)
        made = [sequence(i, range(5), seed=i, max_tokens=5) for i in range(6)]
        assert run(bench, *made) < 6 * 9
        assert bench.scheduler.load(0).preemptions == 0


class TestCounting:
    def test_cached_tokens_are_told_once_with_the_first_token(self):
        bench = caching()
        run(bench, sequence(0, range(11), max_tokens=1))
        bench.admit(sequence(1, range(11), max_tokens=3))
        told = [bench.turn()[1][1].cached_tokens for _ in range(3)]
        assert told == [8, 0, 0]

    def test_load_counts_prompt_tokens_looked_up_and_found(self):
        bench = caching()
        run(bench, sequence(0, range(11), max_tokens=1))
        run(bench, sequence(1, range(11), max_tokens=1))
        run(bench, sequence(2, range(11), max_tokens=1, prompt_logprobs=0))
        load = bench.scheduler.load(0)
        assert (load.cache_queries, load.cache_hits) == (22, 8)

    def test_blocks_found_after_preemption_are_not_counted_again(self):
        bench = caching(blocks=6, block_size=2, max_sequences=3)
        run(bench, *(sequence(i, range(i * 50, i * 50 + 4), max_tokens=8) for i in range(4)))
        load = bench.scheduler.load(0)
        assert load.preemptions > 0
        assert (load.cache_queries, load.cache_hits) == (16, 0)
