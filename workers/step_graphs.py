"""Steps in which everybody decodes, captured once and repeated.

Owns for how many sequences there is a graph, and the tensors that the graphs read and write, which
are always the same ones. A step of fewer sequences than its graph has rows is filled up with rows
of nobody, which write to blocks that nobody has::

    3 sequences  ─►  graph of 4:   a  b  c  ·
                                   └──┬──┘  └ token 0 at position 0 of a block behind all others

A row's bits do not depend on the others, so filling up changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.kernels.interface import AttentionRows
from chairlift.kernels.sampler import CHOOSING_WORDS, Choosing
from chairlift.workers.device_queue import DeviceQueue
from chairlift.workers.step_arrays import ModelArrays

__all__ = ["Compute", "GraphShape", "Outputs", "StepGraphs", "graph_sizes"]

Ints = NDArray[np.int64]

_SIZES = (1, 2, 4, 8, 16, 24, 32)


def graph_sizes(most: int) -> list[int]:
    """For how many sequences there is a graph: densely at first, then doubling, up to ``most``."""
    sizes = [size for size in _SIZES if size < most]
    while most > _SIZES[-1] and sizes[-1] * 2 < most:
        sizes.append(sizes[-1] * 2)
    return [*sizes, most] if most else []


@dataclass(frozen=True, slots=True)
class Outputs:
    """Of each row its logits, (rows, vocabulary), and the token that was chosen, (rows,)."""

    logits: Tensor
    tokens: Tensor


Compute = Callable[[Tensor, AttentionRows, Tensor, Outputs], None]
"""Tokens, where they stand, how to choose the next ones, and where results go."""


@dataclass(frozen=True, slots=True)
class GraphShape:
    """How large the graphs' tensors are.

    Attributes:
        most: sequences of the largest graph.
        vocabulary: logits of a row.
        block_size: positions of one block.
        table_width: blocks of the longest sequence.
        fill_block: the first of ``ceil(most / block_size)`` blocks that nobody has.
    """

    most: int
    vocabulary: int
    block_size: int
    table_width: int
    fill_block: int


class StepGraphs:
    """The graphs of one runner; none before ``capture``.

    A graph's inputs of fixed size stand one after the other, as they are sent::

        tokens | positions | slots | context_lens | choosing          of as many rows as it has
    """

    def __init__(self, compute: Compute, queue: DeviceQueue, shape: GraphShape) -> None:
        self._compute = compute
        self._queue = queue
        self._shape = shape
        self._graphs: dict[int, Callable[[], None]] = {}

    @property
    def largest(self) -> int:
        """The most sequences that a step of these can have."""
        return max(self._graphs, default=0)

    def capture(self, device: torch.device, progress: Callable[[float], None]) -> None:
        """Get ready; writes to the blocks of nobody only.

        Args:
            device: that computes.
            progress: told the done share, up to 1.
        """
        most, width = self._shape.most, self._shape.table_width
        sizes = graph_sizes(most)

        def zeros(*lengths: int) -> Tensor:
            return torch.zeros(*lengths, dtype=torch.int64, device=device)

        self._fixed = zeros(most * (4 + CHOOSING_WORDS))
        self._tables = zeros(most, width)
        self._ones = zeros(most) + 1
        self._sampled = zeros(most)
        self._logits = torch.empty(most, self._shape.vocabulary, device=device)
        # The largest first: the others find their memory in what it has left.
        for done, size in enumerate(reversed(sizes), start=1):
            self._send(_nobody(size, self._shape), None)
            self._graphs[size] = self._queue.capture(self._body(size))
            progress(done / len(sizes))

    def run(
        self, arrays: ModelArrays, choosing: Choosing, previous: Tensor | None
    ) -> tuple[Outputs, Tensor]:
        """Queue a step of at most ``largest`` sequences, which all decode.

        Args:
            arrays: of its rows.
            choosing: of each.
            previous: if given, ``arrays.tokens`` are indices into these.

        Returns:
            What it gives, until the next run, and how tokens are chosen.
        """
        count = len(arrays.tokens)
        size = min(size for size in self._graphs if size >= count)
        self._send(_filled(arrays, choosing, size, self._shape), previous)
        self._graphs[size]()
        *_, choose = self._inputs(size)
        return Outputs(self._logits[:count], self._sampled[:count]), choose[:count]

    def _send(self, step: _Filled, previous: Tensor | None) -> None:
        fixed, tables = self._queue.send([step.fixed, step.tables])
        own = self._fixed[: len(fixed)]
        own.copy_(fixed)
        self._tables[: len(tables), : tables.shape[1]].copy_(tables)
        if previous is not None:
            torch.index_select(previous, 0, fixed[: step.count], out=own[: step.count])

    def _inputs(self, size: int) -> tuple[Tensor, ...]:
        vectors = self._fixed[: 4 * size].view(4, size).unbind()
        choosing = self._fixed[4 * size : (4 + CHOOSING_WORDS) * size]
        return *vectors, choosing.view(size, CHOOSING_WORDS)

    def _body(self, size: int) -> Callable[[], None]:
        tokens, positions, slots, context_lens, choosing = self._inputs(size)
        rows = AttentionRows(
            positions=positions,
            slots=slots,
            block_tables=self._tables[:size],
            context_lens=context_lens,
            query_lens=self._ones[:size],
            block_size=self._shape.block_size,
            most_rows=1,
            most_context=self._shape.table_width * self._shape.block_size,
        )

        out = Outputs(self._logits[:size], self._sampled[:size])
        return lambda: self._compute(tokens, rows, choosing, out)


@dataclass(frozen=True, slots=True)
class _Filled:
    """A step as a graph takes it; its first ``count`` rows are somebody's."""

    count: int
    fixed: Ints
    tables: Ints


def _nobody(size: int, shape: GraphShape) -> _Filled:
    """Rows of nobody."""
    fixed = np.zeros((4 + CHOOSING_WORDS) * size, np.int64)
    slots = np.arange(size) + shape.fill_block * shape.block_size
    fixed[2 * size : 3 * size] = slots
    fixed[3 * size : 4 * size] = 1
    return _Filled(0, fixed, slots[:, None] // shape.block_size)


def _filled(arrays: ModelArrays, choosing: Choosing, size: int, shape: GraphShape) -> _Filled:
    """The step, and then rows of nobody."""
    count, rest = len(arrays.tokens), _nobody(size, shape)
    columns = (arrays.tokens, arrays.positions, arrays.slots, arrays.context_lens)
    for index, column in enumerate(columns):
        rest.fixed[index * size : index * size + count] = column
    words = choosing.view(np.int64)
    rest.fixed[4 * size : 4 * size + len(words)] = words
    tables = np.repeat(rest.tables, arrays.block_tables.shape[1], axis=1)
    tables[:count] = arrays.block_tables
    return _Filled(count, rest.fixed, tables)
