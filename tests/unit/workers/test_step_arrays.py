from __future__ import annotations

import numpy as np
import pytest

from chairlift.workers.sequence import Slice, StepPlan
from chairlift.workers.step_arrays import decoding_arrays, model_arrays, sampling_array
from support.decoding import make_sequence


def planned():
    a = make_sequence(0, range(100, 108))
    a.blocks = [5, 2]
    b = make_sequence(1, range(200, 206))
    b.blocks = [7, 1, 3]
    b.tokens += [300, 301, 302, 303]
    c = make_sequence(2, range(400, 402))
    c.blocks = [0]
    return StepPlan((Slice(a, 5, 3, True), Slice(b, 9, 1, True), Slice(c, 0, 1, False)))


def test_rows_follow_the_slices():
    arrays = model_arrays(planned(), block_size=4)
    assert arrays.tokens.tolist() == [105, 106, 107, 303, 400]
    assert arrays.positions.tolist() == [5, 6, 7, 9, 0]
    assert arrays.query_lens.tolist() == [3, 1, 1]
    assert arrays.context_lens.tolist() == [8, 10, 1]


def test_slots_are_looked_up_in_the_block_tables():
    arrays = model_arrays(planned(), block_size=4)
    assert arrays.slots.tolist() == [2 * 4 + 1, 2 * 4 + 2, 2 * 4 + 3, 3 * 4 + 1, 0]


def test_block_tables_are_padded_with_blocks_of_the_sequence_itself():
    """Padding is read: another sequence's block might hold what it must not be touched by."""
    arrays = model_arrays(planned(), block_size=4)
    assert arrays.block_tables.tolist() == [[5, 2, 5], [7, 1, 3], [0, 0, 0]]


def test_blocks_for_later_tokens_do_not_count():
    sequence = make_sequence(0, range(4))
    sequence.blocks = [3, 9, 8]
    arrays = model_arrays(StepPlan((Slice(sequence, 0, 4, True),)), block_size=4)
    assert arrays.block_tables.tolist() == [[3]]


def test_only_slices_that_sample_have_a_row_for_it():
    assert model_arrays(planned(), block_size=4).sampled_rows.tolist() == [2, 3]
    chunk = Slice(make_sequence(0, range(9)), 0, 3, False)
    chunk.sequence.blocks = [0]
    assert model_arrays(StepPlan((chunk,)), block_size=4).sampled_rows.tolist() == []


def test_a_missing_block_is_an_error_and_not_a_write_elsewhere():
    sequence = make_sequence(3, range(9))
    sequence.blocks = [4, 5]
    with pytest.raises(ValueError, match=r"handle=3.*2 blocks for 3"):
        model_arrays(StepPlan((Slice(sequence, 8, 1, True),)), block_size=4)


def test_sampling_parameters_stand_in_the_order_of_the_sequences():
    sequences = [piece.sequence for piece in planned().slices]
    other = make_sequence(
        4, [1], choice=3, temperature=0.5, top_k=9, top_p=0.8, min_p=0.25, seed=2**64 - 1
    )
    array = sampling_array([*sequences[:2], other])
    assert array["temperature"].tolist() == [0, 0, 0.5]
    assert array["top_k"].tolist() == [0, 0, 9]
    assert array["top_p"].tolist() == [1, 1, 0.8]
    assert array["min_p"].tolist() == [0, 0, 0.25]
    assert array["seed"].tolist() == [0, 0, 2**64 - 1]
    assert array["choice"].tolist() == [0, 0, 3]
    assert array["position"].tolist() == [0, 4, 0], "index of the token among the outputs"


def test_negative_seeds_are_taken_as_64_bits():
    array = sampling_array([make_sequence(0, [1], seed=-1)])
    assert array["seed"].tolist() == [2**64 - 1]


def test_blocks_can_lie_elsewhere_than_under_their_numbers():
    places = np.array([10, 11, 12, 13, 14, 15, 16, 17])
    arrays = model_arrays(planned(), 4, places)
    assert arrays.block_tables.tolist() == [[15, 12, 15], [17, 11, 13], [10, 10, 10]]
    assert arrays.slots.tolist() == [12 * 4 + 1, 12 * 4 + 2, 12 * 4 + 3, 13 * 4 + 1, 40]


def test_a_step_in_which_everybody_decodes_is_laid_out_from_positions():
    plan = StepPlan(planned().slices[1:2])
    (piece,) = plan.slices
    arrays = decoding_arrays([303], [piece.start], [piece.sequence.blocks], 4)
    expected = model_arrays(plan, 4)
    for name in ("tokens", "positions", "slots", "block_tables", "context_lens", "query_lens"):
        assert getattr(arrays, name).tolist() == getattr(expected, name).tolist()
    assert arrays.sampled_rows.tolist() == [0]
    assert arrays.decodes
    assert expected.decodes
    assert not model_arrays(planned(), 4).decodes


def test_the_token_after_an_unknown_one_is_chosen_by_its_own_number():
    (_, piece, _) = planned().slices
    assert sampling_array([piece.sequence], ahead=1)["position"].tolist() == [5]
