"""Who holds which block of the KV cache.

Owns every block: the free list and the reference counts. It knows neither sequences nor tensors:
a block is a number, an index into the cache that the runner keeps.

    0 … num_blocks - 1    each either free (no reference) or used (at least one)
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["BlockPool"]


class BlockPool:
    """A fixed number of blocks of ``block_size`` positions each."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._references = [0] * num_blocks
        # The block freed last is handed out first: its memory is the most likely to be warm.
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that ``num_tokens`` positions start."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int] | None:
        """``count`` blocks with one reference each, or None, and then nothing has changed."""
        if count > len(self._free):
            return None
        blocks = [self._free.pop() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def free(self, blocks: Iterable[int]) -> None:
        """Drop one reference of each block; a block without references is free again.

        Raises:
            RuntimeError: a block is freed that nobody holds.
        """
        for block in blocks:
            if self._references[block] < 1:
                raise RuntimeError(f"block {block} is freed, but nobody holds it")
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def check_integrity(self) -> None:
        """Raises RuntimeError unless each block is either used, or free exactly once."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise RuntimeError("a block stands twice in the free list")
        unreferenced = {block for block, count in enumerate(self._references) if count == 0}
        if free != unreferenced:
            raise RuntimeError(
                f"blocks {sorted(free ^ unreferenced)} are both free and used, or neither"
            )
