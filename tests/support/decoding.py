"""Sequences, and the smallest loop that gives them blocks and runs them to their end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from chairlift.cluster.protocol import SamplingParams
from chairlift.workers.sequence import Runner, Sequence, SequenceKey, Slice, StepPlan


def make_sequence(
    index: int, prompt: Iterable[int], *, choice: int = 0, max_tokens: int = 8, **sampling: Any
) -> Sequence:
    """Greedy unless ``sampling`` says otherwise."""
    tokens = list(prompt)
    return Sequence(
        key=SequenceKey(0, index),
        request_id=f"r{index}",
        tenant="t",
        choice=choice,
        sampling=SamplingParams(max_tokens=max_tokens, **({"temperature": 0.0} | sampling)),
        arrival=index,
        tokens=tokens,
        num_prompt=len(tokens),
    )


class Decoder:
    """Owns the blocks of one runner and drives sequences through it."""

    def __init__(self, runner: Runner, blocks: Iterable[int], block_size: int) -> None:
        self._runner = runner
        self._free = list(blocks)
        self._block_size = block_size

    def step(self, counts: Iterable[tuple[Sequence, int]]) -> None:
        """Compute so many pending tokens of each sequence, and take the new ones in."""
        slices = tuple(self._slice(sequence, count) for sequence, count in counts)
        tokens = iter(self._runner.advance(StepPlan(slices)).tokens)
        for piece in slices:
            piece.sequence.num_computed += piece.count
            if piece.samples:
                piece.sequence.tokens.append(next(tokens))
        assert next(tokens, None) is None

    def run(self, sequences: list[Sequence], *, budget: int = 512) -> None:
        """Continuous batching until every sequence has all its output."""
        while True:
            left, counts = budget, []
            for sequence in sequences:
                count = min(sequence.num_pending, left)
                if count and not self.finished(sequence):
                    counts.append((sequence, count))
                    left -= count
            if not counts:
                return
            self.step(counts)

    def preempt(self, sequence: Sequence) -> None:
        """Take all blocks away; the sequence starts over, with the output it has."""
        self._free.extend(sequence.blocks)
        sequence.blocks.clear()
        sequence.num_computed = 0

    @staticmethod
    def finished(sequence: Sequence) -> bool:
        return sequence.num_tokens >= sequence.max_total

    def _slice(self, sequence: Sequence, count: int) -> Slice:
        end = sequence.num_computed + count
        while len(sequence.blocks) * self._block_size < end:
            sequence.blocks.append(self._free.pop())
        return Slice(sequence, sequence.num_computed, count, samples=end == sequence.num_tokens)
