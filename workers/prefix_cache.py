"""Which blocks of a sequence need not be computed, because their content is in the pool already.

Owns the rule of who may read a block. What blocks are called is ``cluster.block_names``' business:
equal names mean equal prefixes under one salt, and K and V of a position depend on nothing else.

Only full blocks have names, and a block gets its name when the step that filled it is over. Who
shares a block therefore never writes to it: what it still computes lies in blocks of its own.
"""

from __future__ import annotations

from chairlift.cluster.block_names import extend_names
from chairlift.workers.batching import Found
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.sequence import Sequence, Slice

__all__ = ["PrefixCache"]


class PrefixCache:
    """The named blocks of one pool, by what sequences have in common.

    Args:
        pool: holds the blocks and their names.
        enabled: when False, nothing is named and nothing found.
    """

    def __init__(self, pool: BlockPool, enabled: bool) -> None:
        self._pool = pool
        self._enabled = enabled

    def reads(self, sequence: Sequence) -> bool:
        """Whether it may share blocks; log probabilities of the prompt need all of its rows."""
        return self._enabled and sequence.sampling.prompt_logprobs is None

    def find(self, sequence: Sequence) -> Found:
        """What ``adopt`` would give it, without a change."""
        blocks = self._lookup(sequence)
        held = sum(map(self._pool.is_used, blocks))
        return Found(len(blocks) * self._pool.block_size, held)

    def adopt(self, sequence: Sequence) -> int:
        """Let a sequence share what is there of its next blocks; returns the tokens it gained.

        Its last token is left to compute, for without its row there is nothing to sample from.
        """
        blocks = self._lookup(sequence)
        self._pool.share(blocks)
        sequence.blocks.extend(blocks)
        gained = len(blocks) * self._pool.block_size
        sequence.num_computed += gained
        return gained

    def should_wait(self, sequence: Sequence, under_way: set[bytes]) -> bool:
        """Whether the block that a sequence would start with is among those under way."""
        following = len(sequence.blocks)
        return (
            self._stands_between_blocks(sequence)
            and following < self._num_shareable(sequence)
            and self._digests(sequence, following + 1)[following] in under_way
        )

    def touched(self, piece: Slice) -> list[bytes]:
        """Names of the blocks that a slice works on and whose tokens are all known."""
        if not self._enabled:
            return []
        size, sequence = self._pool.block_size, piece.sequence
        end = min(self._pool.blocks_for(piece.start + piece.count), sequence.num_tokens // size)
        return self._digests(sequence, end)[piece.start // size : end]

    def keep(self, piece: Slice) -> None:
        """Name the blocks that a slice has filled, now that they are computed."""
        size, sequence = self._pool.block_size, piece.sequence
        first, end = piece.start // size, (piece.start + piece.count) // size
        if first == end or not self._enabled:  # as it is with most tokens that are decoded
            return
        digests = self._digests(sequence, end)
        for index in range(first, end):
            self._pool.name(sequence.blocks[index], digests[index])

    def _lookup(self, sequence: Sequence) -> list[int]:
        """The longest run of known blocks that follows what the sequence has computed."""
        blocks: list[int] = []
        if self._stands_between_blocks(sequence):
            first, end = len(sequence.blocks), self._num_shareable(sequence)
            for digest in self._digests(sequence, end)[first:end]:
                block = self._pool.find(digest)
                if block is None:
                    break
                blocks.append(block)
        return blocks

    def _stands_between_blocks(self, sequence: Sequence) -> bool:
        """Whether its next token starts a block, which then may be another one's."""
        return self.reads(sequence) and sequence.num_computed % self._pool.block_size == 0

    def _num_shareable(self, sequence: Sequence) -> int:
        return (sequence.num_tokens - 1) // self._pool.block_size

    def _digests(self, sequence: Sequence, count: int) -> list[bytes]:
        """The names of a sequence's blocks, ``count`` of them at least; kept with the sequence."""
        names, size = sequence.digests, self._pool.block_size
        extend_names(names, sequence.tokens, sequence.cache_salt, size, count)
        return names
