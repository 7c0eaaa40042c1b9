from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from chairlift.cluster.block_names import short_name
from chairlift.workers.block_pool import BlockPool

NAMES = (b"a", b"b", b"c", b"d", b"e")
names = st.sampled_from(NAMES)


class BlockPoolMachine(RuleBasedStateMachine):
    """Whatever is taken, named, shared and returned, each block has one place.

    Who follows the events knows at each of them which names are found.
    """

    @initialize(num_blocks=st.integers(1, 12))
    def build(self, num_blocks: int) -> None:
        self.pool = BlockPool(num_blocks, block_size=4)
        self.held: list[list[int]] = []
        self.content: dict[int, bytes] = {}  # what a name promises that its block still holds
        self.told: set[int] = set()

    @rule(count=st.integers(0, 6))
    def allocate(self, count: int) -> None:
        free = self.pool.num_free
        blocks = self.pool.allocate(count)
        assert (blocks is None) == (count > free)
        if blocks is not None:
            assert len(blocks) == count
            assert not set(blocks) & {block for table in self.held for block in table}
            self.held.append(blocks)
            for block in blocks:
                self.content.pop(block, None)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data) -> None:
        self.pool.free(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), name=names)
    def name(self, data, name: bytes) -> None:
        used = sorted({block for table in self.held for block in table} - set(self.content))
        if used:
            block = data.draw(st.sampled_from(used))
            known = self.pool.find(name)
            self.pool.name(block, name)
            assert self.pool.find(name) == (block if known is None else known)
            if known is None:
                self.content[block] = name

    @rule(name=names)
    def share(self, name: bytes) -> None:
        block = self.pool.find(name)
        if block is not None:
            self.pool.share([block])
            self.held.append([block])

    @rule()
    def take_events(self) -> None:
        events = self.pool.take_events()
        if events is not None:
            added, removed = set(events.added), set(events.removed)
            assert added or removed
            assert self.told.isdisjoint(added) and self.told >= removed
            self.told = (self.told - removed) | added
        found = {short_name(name) for name in NAMES if self.pool.find(name) is not None}
        assert self.told == found

    @invariant()
    def every_block_has_one_place(self) -> None:
        self.pool.check_integrity()
        held = Counter(block for blocks in self.held for block in blocks)
        assert self.pool.references() == held
        assert self.pool.num_used == len(held)
        assert self.pool.num_free + self.pool.num_used == self.pool.num_blocks

    @invariant()
    def what_is_found_was_not_given_away(self) -> None:
        for name in NAMES:
            block = self.pool.find(name)
            assert block is None or self.content[block] == name


TestBlockPool = BlockPoolMachine.TestCase
