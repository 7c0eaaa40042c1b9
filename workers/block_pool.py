"""Who holds which block of the KV cache, and which blocks are worth keeping.

Owns every block: the free list, the reference counts, and the names of blocks whose content can
be used again. It knows neither sequences nor tensors: a block is a number, an index into the
cache that the runner keeps, and a name is bytes.

    used      at least one reference; named once its content is complete
    cached    no reference, but a name: found again until its room is needed
    free      no reference, no name

A block that is free goes first, then the cached one that was let go of longest ago. Which names
came and went is kept until somebody takes it, in the short form that routers guess by.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from chairlift.cluster.block_names import NameChanges, short_name
from chairlift.cluster.protocol import BlockEvents

__all__ = ["BlockPool"]


class BlockPool:
    """A fixed number of blocks of ``block_size`` positions each."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._references = [0] * num_blocks
        # The block freed last is handed out first: its memory is the most likely to be warm.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._name_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self._changes = NameChanges()

    @property
    def num_free(self) -> int:
        """Blocks that can be had: those without a reference."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` positions start."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int] | None:
        """``count`` blocks with one reference each, or None, and then nothing has changed."""
        if count > self.num_free:
            return None
        blocks = [self._free.pop() if self._free else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each; without references it is cached or free again.

        Raises:
            RuntimeError: a block is freed that nobody holds.
        """
        for block in blocks:
            if self._references[block] < 1:
                raise RuntimeError(f"block {block} is freed, but nobody holds it")
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._name_of:
                    self._cached[block] = None
                else:
                    self._free.append(block)

    def name(self, block: int, name: bytes) -> None:
        """Let a used block be found; where another one has that name, it stays the one found."""
        if name not in self._block_of:
            self._block_of[name] = block
            self._name_of[block] = name
            self._changes.came(short_name(name))

    def find(self, name: bytes) -> int | None:
        """The used or cached block of that name."""
        return self._block_of.get(name)

    def share(self, blocks: Iterable[int]) -> None:
        """Add one reference to each of these, which ``find`` just gave."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def take_events(self) -> BlockEvents | None:
        """Which names came and went since the last call; None when none did."""
        return self._changes.take()

    def is_used(self, block: int) -> bool:
        return self._references[block] > 0

    def references(self) -> dict[int, int]:
        """The used blocks, and how many hold each."""
        return {block: count for block, count in enumerate(self._references) if count}

    def check_integrity(self) -> None:
        """Raises RuntimeError unless each block is used, cached or free, and names are unique."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise RuntimeError("a block stands twice in the free list")
        unreferenced = {block for block, count in enumerate(self._references) if count == 0}
        named = set(self._name_of)
        if free != unreferenced - named or set(self._cached) != unreferenced & named:
            raise RuntimeError(
                f"blocks without a reference are {sorted(unreferenced)}, of which {sorted(named)} "
                f"have names; free are {sorted(free)}, cached {sorted(self._cached)}"
            )
        if {name: block for block, name in self._name_of.items()} != self._block_of:
            raise RuntimeError("names and blocks contradict each other")

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        name = self._name_of.pop(block)
        del self._block_of[name]
        self._changes.went(short_name(name))
        return block
