import random

from hypothesis import given
from hypothesis import strategies as st

from chairlift.cluster.protocol import BlockEvents
from chairlift.router.prefix_index import EXPECTED_S, PrefixIndex


def index_of(*names: int, limit: int = 100) -> PrefixIndex:
    index = PrefixIndex(limit)
    index.apply(BlockEvents(added=names))
    return index


def test_only_leading_names_match():
    index = index_of(1, 2, 4)
    assert index.match((1, 2, 3, 4)) == 2
    assert index.match((3, 1)) == 0
    assert index.match(()) == 0
    assert index.match((1, 2)) == 2


def test_what_was_evicted_matches_no_more():
    index = index_of(1, 2)
    index.apply(BlockEvents(added=(3,), removed=(2, 77)))
    assert (len(index), index.match((1, 2, 3))) == (2, 1)


def test_a_reset_voids_what_was_known():
    index = index_of(1, 2)
    index.apply(BlockEvents(reset=True, added=(5,)))
    assert (len(index), index.match((1,)), index.match((5,))) == (1, 0, 1)


def test_too_many_names_are_doubtful_and_forgotten():
    index = index_of(1, 2, 3, limit=3)
    assert index.match((1, 2, 3)) == 3
    index.apply(BlockEvents(added=(4,)))
    assert len(index) == 0 and index.match((1,)) == 0


def test_a_prompt_that_was_sent_counts_until_the_replica_has_spoken_of_it():
    index = index_of(1)
    index.expect((1, 2, 3), now=0.0)
    assert index.match((1, 2, 3)) == 3
    index.apply(BlockEvents(added=(2,), removed=(3,)))
    assert index.match((1, 2, 3)) == 2


def test_what_was_expected_and_never_came_is_forgotten():
    index = index_of()
    index.expect((1,), now=0.0)
    index.expect((2,), now=EXPECTED_S + 1)
    assert index.match((1,)) == 0
    assert index.match((2,)) == 1


def test_sending_a_prompt_again_renews_the_expectation():
    index = index_of()
    index.expect((1, 2), now=0.0)
    index.expect((1,), now=4.0)
    index.expect((3,), now=EXPECTED_S + 1)
    assert index.match((1, 2)) == 1


def test_expectations_are_bounded():
    index, rng = index_of(limit=50), random.Random(1)
    for _ in range(100):
        index.expect([rng.getrandbits(64) for _ in range(20)], now=0.0)
    assert len(index._expected) == 50
    assert len(index) == 0


names = st.lists(st.integers(0, 9), max_size=5).map(tuple)


@given(st.lists(st.builds(BlockEvents, reset=st.booleans(), added=names, removed=names)), names)
def test_the_index_holds_what_the_events_say(events, wanted):
    index, held = PrefixIndex(), set()
    for each in events:
        held = ((set() if each.reset else held) - set(each.removed)) | set(each.added)
        index.apply(each)
    assert len(index) == len(held)
    leading = index.match(wanted)
    assert set(wanted[:leading]) <= held
    assert leading == len(wanted) or wanted[leading] not in held
