import pytest

from chairlift.cluster.block_names import short_name
from chairlift.cluster.protocol import BlockEvents
from chairlift.workers.block_pool import BlockPool


def test_blocks_are_handed_out_once():
    pool = BlockPool(num_blocks=5, block_size=4)
    first, second = pool.allocate(2), pool.allocate(3)
    assert first is not None and second is not None
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert (pool.num_free, pool.num_used) == (0, 5)
    pool.check_integrity()


def test_allocation_that_does_not_fit_changes_nothing():
    pool = BlockPool(num_blocks=3, block_size=4)
    pool.allocate(2)
    assert pool.allocate(2) is None
    assert pool.num_free == 1
    pool.check_integrity()


def test_freed_blocks_come_back():
    pool = BlockPool(num_blocks=2, block_size=4)
    blocks = pool.allocate(2)
    assert blocks is not None
    pool.free(blocks)
    assert pool.num_free == 2
    assert sorted(pool.allocate(2) or []) == sorted(blocks)


def test_no_blocks_can_be_had_from_a_full_pool():
    pool = BlockPool(num_blocks=1, block_size=4)
    pool.allocate(1)
    assert pool.allocate(0) == []


def test_freeing_what_nobody_holds_is_an_error():
    """A block freed twice would be handed to two sequences."""
    pool = BlockPool(num_blocks=2, block_size=4)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.free(blocks)
    with pytest.raises(RuntimeError, match="nobody holds it"):
        pool.free(blocks)
    pool.check_integrity()


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3)]
)
def test_a_started_block_counts(tokens, blocks):
    assert BlockPool(num_blocks=1, block_size=4).blocks_for(tokens) == blocks


class TestNames:
    def named(self, *names: bytes, num_blocks: int = 4) -> tuple[BlockPool, list[int]]:
        pool = BlockPool(num_blocks, block_size=4)
        blocks = pool.allocate(len(names))
        assert blocks is not None
        for block, name in zip(blocks, names, strict=True):
            pool.name(block, name)
        return pool, blocks

    def test_a_named_block_is_found_in_use_and_after(self):
        pool, (block,) = self.named(b"a")
        assert pool.find(b"a") == block and pool.find(b"b") is None
        pool.free([block])
        assert pool.find(b"a") == block
        assert (pool.num_free, pool.num_used, pool.is_used(block)) == (4, 0, False)
        pool.check_integrity()

    def test_a_shared_block_is_used_until_the_last_one_lets_go(self):
        pool, (block,) = self.named(b"a")
        pool.share([block])
        assert pool.references() == {block: 2}
        pool.free([block])
        assert pool.is_used(block)
        pool.free([block])
        assert not pool.is_used(block)
        pool.share([block])
        assert (pool.references(), pool.num_free) == ({block: 1}, 3)
        pool.check_integrity()

    def test_blocks_without_a_name_are_taken_before_cached_ones(self):
        pool, blocks = self.named(b"a", b"b", num_blocks=3)
        pool.free(blocks)
        pool.allocate(1)
        assert pool.find(b"a") is not None and pool.find(b"b") is not None

    def test_the_cached_block_freed_longest_ago_goes_first(self):
        pool, (a, b, c) = self.named(b"a", b"b", b"c", num_blocks=3)
        pool.free([b]), pool.free([c]), pool.free([a])
        pool.share([b]), pool.free([b])
        assert pool.allocate(2) == [c, a]
        assert [pool.find(name) for name in (b"a", b"b", b"c")] == [None, b, None]
        pool.check_integrity()

    def test_a_second_block_of_a_name_stays_without_one(self):
        pool, (first, second) = self.named(b"a", b"a")
        assert pool.find(b"a") == first
        pool.free([second, first])
        assert pool.allocate(3) is not None
        assert pool.find(b"a") == first
        pool.check_integrity()

    def test_what_does_not_fit_evicts_nothing(self):
        pool, blocks = self.named(b"a", num_blocks=1)
        pool.free(blocks)
        assert pool.allocate(2) is None
        assert pool.find(b"a") == blocks[0]


class TestEvents:
    A, B = short_name(b"a"), short_name(b"b")

    def test_names_are_told_once(self):
        pool = BlockPool(4, block_size=4)
        assert pool.take_events() is None
        first, second, _ = pool.allocate(3)
        pool.name(first, b"a")
        pool.name(second, b"a")
        assert pool.take_events() == BlockEvents(added=(self.A,))
        assert pool.take_events() is None

    def test_sharing_and_freeing_change_no_name(self):
        pool, (block,) = TestNames().named(b"a")
        pool.take_events()
        pool.share([block])
        pool.free([block, block])
        assert pool.take_events() is None

    def test_eviction_is_told_and_does_not_hide_a_new_name(self):
        pool, blocks = TestNames().named(b"a", num_blocks=1)
        pool.take_events()
        pool.free(blocks)
        (block,) = pool.allocate(1)
        pool.name(block, b"b")
        assert pool.take_events() == BlockEvents(added=(self.B,), removed=(self.A,))

    def test_a_name_that_came_and_went_or_went_and_came_back_is_not_told(self):
        pool, blocks = TestNames().named(b"a", num_blocks=1)
        pool.free(blocks)
        blocks = pool.allocate(1)
        assert pool.take_events() is None
        pool.name(blocks[0], b"b")
        assert pool.take_events() == BlockEvents(added=(self.B,))
        pool.free(blocks)
        blocks = pool.allocate(1)
        pool.name(blocks[0], b"b")
        assert pool.take_events() is None
