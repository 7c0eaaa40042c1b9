from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chairlift.workers.block_pool import BlockPool


class BlockPoolMachine(RuleBasedStateMachine):
    """Whatever is taken and returned, each block is free or has one holder."""

    @initialize(num_blocks=st.integers(1, 12))
    def build(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, block_size=4)
        self.held: list[list[int]] = []

    @rule(count=st.integers(0, 6))
    def allocate(self, count: int) -> None:
        free = self.pool.num_free
        blocks = self.pool.allocate(count)
        assert (blocks is None) == (count > free)
        if blocks is not None:
            assert len(blocks) == count
            self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data) -> None:
        self.pool.free(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def every_block_has_one_place(self) -> None:
        self.pool.check_integrity()
        held = [block for blocks in self.held for block in blocks]
        assert len(held) == len(set(held)) == self.pool.num_used
        assert self.pool.num_free + self.pool.num_used == self.pool.num_blocks


TestBlockPool = BlockPoolMachine.TestCase
