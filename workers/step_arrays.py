"""A step's plan as arrays: what the model and the sampler read.

Owns the translation from slices of sequences to rows. Plain numpy, no torch. The rows of a step
are the tokens of its slices one after the other, in the order of the plan::

    slices      [  A: 3 tokens  ][ B: 1 ][  C: 2  ]
    tokens       a5   a6   a7      b9      c0  c1
    positions     5    6    7       9       0   1
    slots         block of the position × block size + offset in it
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from chairlift.kernels.sampler import CHOOSING, Choosing
from chairlift.workers.sequence import Sequence, StepPlan

__all__ = ["ModelArrays", "decoding_arrays", "model_arrays", "sampling_array"]

_SEED_BITS = (1 << 64) - 1

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ModelArrays:
    """Input of the forward pass.

    Attributes:
        tokens, positions, slots: (rows,).
        block_tables: (slices, blocks) padded with the sequence's own first block.
        context_lens: (slices,) tokens in the cache after the step.
        query_lens: (slices,) rows of each.
        sampled_rows: the last row of every slice that samples.
    """

    tokens: Ints
    positions: Ints
    slots: Ints
    block_tables: Ints
    context_lens: Ints
    query_lens: Ints
    sampled_rows: Ints

    @property
    def decodes(self) -> bool:
        """Whether every slice is a single row that samples."""
        return len(self.sampled_rows) == len(self.context_lens) == len(self.positions)


def model_arrays(plan: StepPlan, block_size: int, places: Ints | None = None) -> ModelArrays:
    """Lay out the rows of a plan that has at least one slice.

    Args:
        plan: the step.
        block_size: positions of one block.
        places: where each block lies in the cache; None where it lies under its own number.

    Raises:
        ValueError: a sequence has no block for a planned token; writing it would spoil another's.
    """
    slices = plan.slices
    starts = np.array([piece.start for piece in slices])
    query_lens = np.array([piece.count for piece in slices])
    context_lens = starts + query_lens
    num_blocks = -(-context_lens // block_size)
    for piece, count in zip(slices, num_blocks.tolist(), strict=True):
        sequence = piece.sequence
        if len(sequence.blocks) < count:
            raise ValueError(
                f"sequence {sequence.key}: {len(sequence.blocks)} blocks for {count} blocks of "
                "tokens"
            )
    tables = _tables([piece.sequence.blocks for piece in slices], num_blocks, places)
    ends = np.cumsum(query_lens)
    owner = np.repeat(np.arange(len(slices)), query_lens)
    positions = np.arange(int(ends[-1])) - (ends - context_lens)[owner]
    tokens = chain.from_iterable(
        piece.sequence.tokens[piece.start : piece.start + piece.count] for piece in slices
    )
    return ModelArrays(
        tokens=np.fromiter(tokens, np.int64, len(positions)),
        positions=positions,
        slots=tables[owner, positions // block_size] * block_size + positions % block_size,
        block_tables=tables,
        context_lens=context_lens,
        query_lens=query_lens,
        sampled_rows=ends[[piece.samples for piece in slices]] - 1,
    )


def decoding_arrays(
    tokens: Seq[int],
    positions: Seq[int],
    blocks: Seq[Seq[int]],
    block_size: int,
    places: Ints | None = None,
) -> ModelArrays:
    """Lay out a step in which every sequence has a single row, at least one of them.

    Args:
        tokens: what stands in ``ModelArrays.tokens``, whatever it means.
        positions: of each row.
        blocks: of each sequence, up to that of its position at least.
        block_size: positions of one block.
        places: as ``model_arrays`` takes them.
    """
    where = np.array(positions, np.int64)
    rows = np.arange(len(where))
    tables = _tables(blocks, where // block_size + 1, places)
    return ModelArrays(
        tokens=np.array(tokens, np.int64),
        positions=where,
        slots=tables[rows, where // block_size] * block_size + where % block_size,
        block_tables=tables,
        context_lens=where + 1,
        query_lens=np.ones_like(where),
        sampled_rows=rows,
    )


def _tables(blocks: Seq[Seq[int]], counts: Ints, places: Ints | None) -> Ints:
    """So many blocks of each sequence, where they lie."""
    tables = np.empty((len(blocks), int(counts.max())), np.int64)
    for own, table, count in zip(blocks, tables, counts.tolist(), strict=True):
        table[:count] = own[:count]
        table[count:] = own[0]
    return tables if places is None else places[tables]


def sampling_array(sequences: Iterable[Sequence], ahead: int = 0) -> Choosing:
    """How the next token of each sequence is chosen, as ``kernels.sampler`` takes it.

    ``ahead``: how many tokens come before that one which are not known yet.
    """
    return np.array([_choosing(sequence, ahead) for sequence in sequences], CHOOSING)


def _choosing(sequence: Sequence, ahead: int) -> tuple[float, ...]:
    """In the order of ``CHOOSING``."""
    asked = sequence.sampling
    return (
        asked.temperature,
        asked.min_p,
        asked.top_p,
        asked.top_k,
        asked.seed & _SEED_BITS,
        sequence.choice,
        sequence.num_output + ahead,
    )
