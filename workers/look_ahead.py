"""The step after this one, guessed before this one's tokens are known.

Owns the guess, what of it has come true when the next plan is there, and where blocks lie in the
cache. No torch, nothing of a device.

While a device computes a step, the loop waits for its tokens; while the loop decides what comes
next, the device would wait. But after a step in which everybody decodes, the next one is hardly a
question: each sequence computes one token more, the very one that is being sampled. So a runner
can start with that before it hands over the tokens::

    runner   step N ─┬─ start with N+1 ─┬─ tokens of N ─►       ┌─ what came true of N+1 …
    engine           │                  │  retire, refill, plan ─┘
    device   ════════╧═ N ══════════════╧═════════ N+1 ══════════════

Nobody else needs to know. What a row computes depends on its own sequence alone, so a row that
was guessed right is the row that was asked for; the others (who has ended, was cancelled, had to
yield) are left aside, and who was not guessed (who has just come) is computed then.

A row writes where its sequence has the place for its next token. At the end of a block there is
none yet: it gets a spare block. If the sequence then gets a block for that position, which nobody
has written to, this block and the spare one change places, so that nothing is copied. A row that
is left aside has written behind the end of its sequence, or to a spare block, and whoever gets
that place later writes to it later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.sampler import Choosing
from chairlift.workers.sequence import Sequence, Slice, StepPlan
from chairlift.workers.step_arrays import ModelArrays, decoding_arrays, sampling_array

__all__ = ["Guess", "LookAhead"]


@dataclass(frozen=True, slots=True)
class Guess:
    """One row of the step after the present one.

    Attributes:
        sequence: whose.
        position: of the token that the present step samples.
        blocks: its block table, as far as it is known; with the spare one at its end, if any.
        spare: a block that it has not got, for the present.
        row: of what computes the present step: which token it is.
    """

    sequence: Sequence
    position: int
    blocks: list[int]
    spare: int | None
    row: int


class LookAhead:
    """Where the blocks of a cache lie, and the guesses about its sequences.

    Args:
        num_blocks: blocks that the engine has.
        num_spare: how many more the cache has, behind these.
        block_size: positions of one block.
        is_plain: whether a sequence's tokens can be chosen without looking at the earlier ones.
    """

    def __init__(
        self,
        num_blocks: int,
        num_spare: int,
        block_size: int,
        is_plain: Callable[[Sequence], bool],
    ) -> None:
        self.places: NDArray[np.int64] = np.arange(num_blocks + num_spare)
        self._spares = range(num_blocks, num_blocks + num_spare)
        self._block_size = block_size
        self._is_plain = is_plain

    def guess(self, plan: StepPlan, rows: Iterable[int]) -> tuple[Guess, ...]:
        """Who decodes in the step after this one; nobody where that is not worth a guess.

        That is the case where somebody does not decode now: prompts are computed faster together
        with the rest.

        Args:
            plan: the present step.
            rows: which row each of its slices is in what is computed.
        """
        guesses: list[Guess] = []
        spares = iter(self._spares)
        for row, piece in zip(rows, plan.slices, strict=True):
            sequence, position = piece.sequence, piece.start + 1
            if piece.count != 1 or not piece.samples or not self._is_plain(sequence):
                return ()
            if sequence.num_output + 1 >= sequence.sampling.max_tokens:
                continue  # the token that is being sampled is its last
            count, spare = position // self._block_size + 1, None
            blocks = sequence.blocks[:count]
            if len(blocks) < count:
                spare = next(spares, None)
                if spare is None:
                    return ()
                blocks.append(spare)
            guesses.append(Guess(sequence, position, blocks, spare, row))
        return tuple(guesses)

    def arrays(self, guesses: tuple[Guess, ...]) -> tuple[ModelArrays, Choosing]:
        """The guessed step; in place of tokens stand the rows that they are sampled in."""
        arrays = decoding_arrays(
            [guess.row for guess in guesses],
            [guess.position for guess in guesses],
            [guess.blocks for guess in guesses],
            self._block_size,
            self.places,
        )
        return arrays, sampling_array((guess.sequence for guess in guesses), ahead=1)

    def confirm(self, guesses: tuple[Guess, ...], tokens: list[int], plan: StepPlan) -> list[int]:
        """What has come true, now that the plan is there.

        Args:
            guesses: all that were made after the step before.
            tokens: what that step sampled, by ``Guess.row``.
            plan: of this step.

        Returns:
            For each slice the index of its guess, or -1.
        """
        index_of = {guess.sequence: index for index, guess in enumerate(guesses)}
        confirmed = []
        for piece in plan.slices:
            index = index_of.get(piece.sequence, -1)
            if index >= 0 and not self._is_true(guesses[index], tokens, piece):
                index = -1
            if index >= 0:
                self._settle(guesses[index])
            confirmed.append(index)
        return confirmed

    def _is_true(self, guess: Guess, tokens: list[int], piece: Slice) -> bool:
        sequence, position = piece.sequence, guess.position
        known = guess.blocks if guess.spare is None else guess.blocks[:-1]
        return (
            (piece.start, piece.count, piece.samples) == (position, 1, True)
            and sequence.tokens[position] == tokens[guess.row]
            and len(sequence.blocks) >= len(guess.blocks)
            and sequence.blocks[: len(known)] == known
        )

    def _settle(self, guess: Guess) -> None:
        """What was written to the spare block is where the sequence's own block lies."""
        if guess.spare is not None:
            pair = [guess.spare, guess.sequence.blocks[len(guess.blocks) - 1]]
            self.places[pair] = self.places[pair[::-1]]
