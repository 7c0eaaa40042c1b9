"""A runner without a model: its next token is a pure function of what stands in the cache.

Owns a shadow of the KV cache in which each position holds a fingerprint of the tokens up to it, as
K and V of a real model depend on the whole prefix. It reads every prefix back through the block
table, so a block that is shared by mistake, freed too early, or never written is an error at the
step in which it would have given a wrong token. Made for tests; it checks much more than it
computes. Each position also remembers the cache salt under which it was written: no other one may
read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from chairlift.workers.sequence import Slice, Status, StepPlan, StepResult

__all__ = ["FakeRunner", "fake_token", "fingerprint", "sample_token"]

_MASK = 2**64 - 1


def fake_token(prefix: Iterable[int], seed: int, choice: int, vocab_size: int) -> int:
    """The token that follows ``prefix``."""
    return sample_token(fingerprint(prefix), seed, choice, vocab_size)


def fingerprint(tokens: Iterable[int], prefix: int = 0) -> int:
    """Of a prefix that has the fingerprint ``prefix``, and more tokens.

    The constants are those of Knuth's MMIX generator.
    """
    for token in tokens:
        prefix = ((prefix + token + 1) * 6364136223846793005 + 1442695040888963407) & _MASK
    return prefix


def sample_token(prefix: int, seed: int, choice: int, vocab_size: int) -> int:
    """The token that follows a prefix of this fingerprint."""
    return (fingerprint((seed, choice), prefix) >> 33) % vocab_size


class FakeRunner:
    """Implements ``Runner``, and raises AssertionError for a plan that breaks its contract.

    Args:
        vocab_size: tokens are below it.
        block_size: positions of a block.
        delay: called with the plan before it is computed; may wait, or raise.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        block_size: int = 16,
        delay: Callable[[StepPlan], None] | None = None,
    ) -> None:
        self._vocab_size = vocab_size
        self._block_size = block_size
        self._delay = delay
        self._cache: dict[int, tuple[int, str]] = {}

    def advance(self, plan: StepPlan) -> StepResult:
        if self._delay is not None:
            self._delay(plan)
        if len({piece.sequence for piece in plan.slices}) != len(plan.slices):
            raise AssertionError("a sequence stands twice in the plan")
        _check_owners(plan, self._block_size)
        for piece in plan.slices:
            self._check(piece)
            self._write(piece)
        # Read only now: no slice may have written over what another one needs.
        last = [self._read(piece) for piece in plan.slices]
        return StepResult(
            [
                sample_token(
                    prefix,
                    piece.sequence.sampling.seed,
                    piece.sequence.choice,
                    self._vocab_size,
                )
                for piece, prefix in zip(plan.slices, last, strict=True)
                if piece.samples
            ]
        )

    def _check(self, piece: Slice) -> None:
        sequence, end = piece.sequence, piece.start + piece.count
        facts = {
            "runs": sequence.status is Status.RUNNING,
            "starts where the cache ends": piece.start == sequence.num_computed,
            "has tokens to compute": 0 < piece.count <= sequence.num_pending,
            "samples at the last token only": piece.samples == (end == sequence.num_tokens),
            "has blocks": end <= len(sequence.blocks) * self._block_size,
        }
        broken = [name for name, holds in facts.items() if not holds]
        if broken:
            raise AssertionError(f"{sequence.key} from {piece.start} to {end}: untrue: {broken}")

    def _write(self, piece: Slice) -> None:
        slots, salt = self._slots(piece), piece.sequence.cache_salt
        prefix = self._cache.get(slots[piece.start - 1], (0, ""))[0] if piece.start else 0
        for position in range(piece.start, piece.start + piece.count):
            prefix = fingerprint((piece.sequence.tokens[position],), prefix)
            self._cache[slots[position]] = prefix, salt

    def _read(self, piece: Slice) -> int:
        """The last fingerprint, once every one up to it is what the tokens say."""
        slots, salt = self._slots(piece), piece.sequence.cache_salt
        prefix = 0
        for slot, token in zip(slots, piece.sequence.tokens, strict=False):
            prefix = fingerprint((token,), prefix)
            written, by_salt = self._cache.get(slot, (None, salt))
            if written != prefix:
                raise AssertionError(f"{piece.sequence.key}: slot {slot} holds another prefix")
            if by_salt != salt:
                raise AssertionError(f"{piece.sequence.key}: slot {slot} is of salt {by_salt!r}")
        return prefix

    def _slots(self, piece: Slice) -> list[int]:
        """Where each position up to the end of the slice stands."""
        size = self._block_size
        slots = [block * size + i for block in piece.sequence.blocks for i in range(size)]
        return slots[: piece.start + piece.count]


def _check_owners(plan: StepPlan, block_size: int) -> None:
    """A block that a slice writes to stands in no other block table of the plan."""
    tables = Counter(block for piece in plan.slices for block in piece.sequence.blocks)
    for piece in plan.slices:
        first, end = piece.start // block_size, piece.start + piece.count
        for block in piece.sequence.blocks[first : -(-end // block_size)]:
            if tables[block] > 1:
                raise AssertionError(f"{piece.sequence.key} writes to the shared block {block}")
