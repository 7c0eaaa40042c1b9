import pytest

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
