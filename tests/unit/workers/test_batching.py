import pytest

from chairlift.cluster.protocol import Batching
from chairlift.workers.batching import Continuous, Room, Static, StaticSorted, policy_for
from support.engines import sequence


def room(**changes) -> Room:
    facts = {"running": 0, "seats": 4, "blocks": 100, "tokens": 1000, "block_size": 4}
    return Room(**(facts | changes))


def queue(*lengths: int, max_tokens: int = 4):
    return [sequence(i, range(length), max_tokens=max_tokens) for i, length in enumerate(lengths)]


def arrivals(choice) -> list[int]:
    return [each.arrival for each in choice.admitted]


class TestContinuous:
    def test_fills_the_free_seats_in_order(self):
        waiting = queue(5, 1, 9, 2, 3)
        assert arrivals(Continuous().choose(waiting, room(running=7, seats=3))) == [0, 1, 2]

    def test_gives_nothing_when_more_run_than_there_are_seats(self):
        """Controls may have lowered the number of seats below what runs."""
        assert arrivals(Continuous().choose(queue(1), room(running=5, seats=-1))) == []

    def test_needs_blocks_for_the_known_tokens_and_the_next_one(self):
        assert arrivals(Continuous().choose(queue(3, 4), room(blocks=2))) == [0]
        assert arrivals(Continuous().choose(queue(3, 4), room(blocks=3))) == [0, 1]

    def test_does_not_skip_what_does_not_fit(self):
        assert arrivals(Continuous().choose(queue(1, 40, 1), room(blocks=5))) == [0]

    def test_stops_when_the_next_step_has_no_token_left(self):
        """A seat must not be held by a sequence that cannot run in the next step."""
        assert arrivals(Continuous().choose(queue(6, 6, 6), room(tokens=12))) == [0, 1]
        assert arrivals(Continuous().choose(queue(6, 6, 6), room(tokens=13))) == [0, 1, 2]
        assert arrivals(Continuous().choose(queue(6), room(tokens=0))) == []


class TestStatic:
    def test_gives_nothing_while_anything_runs(self):
        assert arrivals(Static().choose(queue(1, 1), room(running=1, seats=3))) == []

    def test_admits_a_whole_batch_however_long_its_prompts(self):
        assert arrivals(Static().choose(queue(9, 9, 9, 9, 9), room(tokens=4))) == [0, 1, 2, 3]

    def test_sets_blocks_aside_for_the_greatest_length(self):
        waiting = queue(4, 4, max_tokens=8)
        assert arrivals(Static().choose(waiting, room(blocks=5))) == [0]
        assert arrivals(Static().choose(waiting, room(blocks=6))) == [0, 1]


class TestStaticSorted:
    def test_gives_nothing_while_anything_runs(self):
        assert arrivals(StaticSorted().choose(queue(1, 1), room(running=1, seats=3))) == []

    def test_batches_the_first_with_those_of_similar_length(self):
        waiting = queue(30, 5, 31, 6, 32, 100)
        assert arrivals(StaticSorted().choose(waiting, room(seats=3))) == [0, 2, 4]

    def test_fills_the_seats_although_the_first_is_the_longest(self):
        waiting = queue(50, 1, 2, 3)
        assert arrivals(StaticSorted().choose(waiting, room(seats=3))) == [0, 2, 3]

    def test_fills_the_seats_although_the_first_is_the_shortest(self):
        waiting = queue(1, 50, 20, 30)
        assert arrivals(StaticSorted().choose(waiting, room(seats=3))) == [0, 2, 3]

    def test_takes_all_when_all_fit(self):
        assert sorted(arrivals(StaticSorted().choose(queue(9, 1, 5), room()))) == [0, 1, 2]

    def test_the_first_is_admitted_when_blocks_are_short(self):
        """Were a shorter one to lead, the first could be left out of every batch."""
        waiting = queue(36, 30, 31)
        assert arrivals(StaticSorted().choose(waiting, room(seats=3, blocks=10))) == [0]


@pytest.mark.parametrize("batching", Batching)
def test_every_mode_has_a_policy_that_admits_into_an_empty_engine(batching):
    chosen = policy_for(batching).choose(queue(3, 3), room(seats=1, blocks=2))
    assert arrivals(chosen) == [0]
