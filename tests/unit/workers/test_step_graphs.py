from __future__ import annotations

import numpy as np
import pytest
import torch

from chairlift.kernels.sampler import CHOOSING
from chairlift.workers.device_queue import CpuQueue
from chairlift.workers.step_arrays import decoding_arrays, sampling_array
from chairlift.workers.step_graphs import GraphShape, StepGraphs, graph_sizes
from support.decoding import make_sequence

SHAPE = GraphShape(most=8, vocabulary=5, block_size=4, table_width=6, fill_block=20)


class Steps:
    """What a graph was given, each time; its tokens are those that it got, plus one."""

    def __init__(self):
        self.rows = []

    def __call__(self, tokens, rows, choosing, out):
        self.rows.append((tokens.clone(), rows, rows.slots.clone(), rows.block_tables.clone()))
        self.choosing = choosing.numpy().view(CHOOSING)[:, 0].copy()
        out.tokens.copy_(tokens + 1)
        out.logits.copy_(tokens[:, None].expand_as(out.logits))


@pytest.fixture
def steps():
    return Steps()


@pytest.fixture
def graphs(steps):
    graphs = StepGraphs(steps, CpuQueue(), SHAPE)
    graphs.capture(torch.device("cpu"), lambda share: None)
    return graphs


def arrays_of(count, first=0):
    """Sequences of 5 tokens, in blocks of their own."""
    return decoding_arrays(
        tokens=[first + index for index in range(count)],
        positions=[4] * count,
        blocks=[[2 * index, 2 * index + 1] for index in range(count)],
        block_size=4,
    )


def choosing_of(count):
    return sampling_array(make_sequence(index, [1], seed=index + 1) for index in range(count))


def test_there_is_a_graph_for_few_sequences_and_ever_fewer_for_many():
    assert graph_sizes(256) == [1, 2, 4, 8, 16, 24, 32, 64, 128, 256]
    assert graph_sizes(100) == [1, 2, 4, 8, 16, 24, 32, 64, 100]
    assert graph_sizes(24) == [1, 2, 4, 8, 16, 24]
    assert graph_sizes(3) == [1, 2, 3]
    assert graph_sizes(1) == [1]
    assert graph_sizes(0) == []


@pytest.mark.parametrize(("count", "size"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8)])
def test_a_step_takes_the_smallest_graph_that_holds_it(graphs, steps, count, size):
    out, choosing = graphs.run(arrays_of(count, 30), choosing_of(count), None)
    tokens, rows, *_ = steps.rows[-1]
    assert tokens.tolist() == [*range(30, 30 + count), *[0] * (size - count)]
    assert out.tokens.tolist() == [31 + index for index in range(count)]
    assert out.logits[:, 0].tolist() == [30 + index for index in range(count)]
    assert choosing.numpy().view(CHOOSING)["seed"][:, 0].tolist() == list(range(1, count + 1))
    assert rows.query_lens.tolist() == [1] * size
    assert rows.context_lens.tolist() == [*[5] * count, *[1] * (size - count)]


def test_rows_of_nobody_write_to_blocks_of_nobody_each_to_a_place_of_its_own(graphs, steps):
    graphs.run(arrays_of(5), choosing_of(5), None)
    _, _, slots, tables = steps.rows[-1]
    assert len(set(slots.tolist())) == 8
    assert slots[5:].min() >= SHAPE.fill_block * SHAPE.block_size
    assert tables[5:, 0].min() >= SHAPE.fill_block, "the first is all that such a row reads"
    assert slots.max() < (SHAPE.fill_block + 2) * SHAPE.block_size


def test_tokens_can_come_from_the_step_before(graphs, steps):
    out, _ = graphs.run(arrays_of(3, 10), choosing_of(3), None)
    rows = np.array([2, 0])
    graphs.run(
        decoding_arrays(rows.tolist(), [5, 5], [[4, 5], [0, 1]], 4), choosing_of(2), out.tokens
    )
    assert steps.rows[-1][0].tolist() == [13, 11]


def test_tables_grow_and_shrink_from_step_to_step(graphs, steps):
    long = decoding_arrays([1], [23], [[9, 8, 7, 6, 5, 4]], 4)
    graphs.run(long, choosing_of(1), None)
    assert steps.rows[-1][3].tolist() == [[9, 8, 7, 6, 5, 4]]
    graphs.run(arrays_of(1), choosing_of(1), None)
    table = steps.rows[-1][3][0].tolist()
    assert table[:2] == [0, 1]
    assert max(table) < SHAPE.fill_block + 2, "whatever stands behind is a block"


def test_every_graph_reads_and_writes_the_same_memory(graphs, steps):
    places = set()
    for count in (1, 3, 8):
        out, _ = graphs.run(arrays_of(count), choosing_of(count), None)
        rows = steps.rows[-1][1]
        places.add((out.tokens.data_ptr(), out.logits.data_ptr(), rows.block_tables.data_ptr()))
    assert len(places) == 1


def test_nothing_is_captured_where_none_are_wanted(steps):
    shape = GraphShape(most=0, vocabulary=5, block_size=4, table_width=6, fill_block=20)
    graphs = StepGraphs(steps, CpuQueue(), shape)
    graphs.capture(torch.device("cpu"), lambda share: None)
    assert graphs.largest == 0
