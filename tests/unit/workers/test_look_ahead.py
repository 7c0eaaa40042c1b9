from __future__ import annotations

import pytest

from chairlift.workers.look_ahead import LookAhead
from chairlift.workers.sampler import is_plain
from chairlift.workers.sequence import Slice, StepPlan
from support.decoding import make_sequence

BLOCK_SIZE, BLOCKS, SPARES = 4, 10, 2


def look_ahead(spares=SPARES):
    return LookAhead(BLOCKS, spares, BLOCK_SIZE, is_plain)


def decoding(index, length, blocks, **sampling):
    """A sequence whose last token is computed next."""
    sequence = make_sequence(index, range(length), **sampling)
    sequence.num_computed = length - 1
    sequence.blocks = list(blocks)
    return sequence


def step(*sequences):
    return StepPlan(
        tuple(Slice(each, each.num_computed, each.num_pending, samples=True) for each in sequences)
    )


def guess(look, plan):
    return look.guess(plan, range(len(plan.slices)))


def go_on(plan, tokens):
    """The step is over; the plan of the next one, once there are blocks."""
    for piece, token in zip(plan.slices, tokens, strict=True):
        piece.sequence.num_computed += piece.count
        piece.sequence.tokens.append(token)
    return step(*(piece.sequence for piece in plan.slices))


def test_who_decodes_goes_on_with_the_token_that_is_being_sampled():
    a, b = decoding(0, 6, [3, 7]), decoding(1, 3, [5], seed=9, temperature=1.0)
    look = look_ahead()
    arrays, choosing = look.arrays(guess(look, step(a, b)))
    assert arrays.tokens.tolist() == [0, 1], "rows of the step before"
    assert arrays.positions.tolist() == [6, 3]
    assert arrays.slots.tolist() == [7 * 4 + 2, 5 * 4 + 3]
    assert arrays.context_lens.tolist() == [7, 4]
    assert arrays.block_tables.tolist() == [[3, 7], [5, 5]]
    assert arrays.decodes
    assert choosing["position"].tolist() == [1, 1]
    assert choosing["seed"].tolist() == [0, 9]


def test_rows_are_those_of_what_is_computed():
    look = look_ahead()
    plan = step(decoding(0, 2, [1]), decoding(1, 2, [2]))
    assert [each.row for each in look.guess(plan, [4, 1])] == [4, 1]


@pytest.mark.parametrize(
    "asked",
    [
        {"logprobs": 0},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"logit_bias": ((1, 2.0),)},
        {"allowed_token_ids": (1,)},
        {"min_tokens": 1},
    ],
)
def test_nobody_goes_on_where_somebody_asks_for_more_than_a_token(asked):
    look = look_ahead()
    assert guess(look, step(decoding(0, 2, [1]), decoding(1, 2, [2], **asked))) == ()


def test_nobody_goes_on_beside_a_prompt():
    look = look_ahead()
    prompt = make_sequence(1, range(3))
    prompt.blocks = [2]
    assert guess(look, step(decoding(0, 2, [1]), prompt)) == ()
    chunk = StepPlan((Slice(prompt, 0, 1, samples=False),))
    assert guess(look, chunk) == ()


def test_who_samples_its_last_token_does_not_go_on():
    look = look_ahead()
    last, other = decoding(0, 2, [1], max_tokens=1), decoding(1, 2, [2])
    assert [each.sequence for each in guess(look, step(last, other))] == [other]


def test_a_spare_block_serves_until_there_is_one_and_then_lies_where_that_lay():
    look = look_ahead()
    a, b = decoding(0, 4, [3]), decoding(1, 4, [5])
    plan = step(a, b)
    guesses = guess(look, plan)
    arrays, _ = look.arrays(guesses)
    assert arrays.slots.tolist() == [BLOCKS * 4, (BLOCKS + 1) * 4]
    following = go_on(plan, [8, 9])
    a.blocks.append(6)
    b.blocks.append(2)
    assert look.confirm(guesses, [8, 9], following) == [0, 1]
    assert look.places[[6, 2]].tolist() == [BLOCKS, BLOCKS + 1]
    assert look.places[[BLOCKS, BLOCKS + 1]].tolist() == [6, 2]
    assert sorted(look.places) == list(range(BLOCKS + SPARES)), "every place is somebody's"


def test_a_spare_block_stays_one_when_its_row_is_left_aside():
    look = look_ahead()
    a, b = decoding(0, 4, [3]), decoding(1, 4, [5])
    plan = step(a, b)
    guesses = guess(look, plan)
    go_on(plan, [8, 9])
    b.blocks.append(2)
    assert look.confirm(guesses, [8, 9], step(b)) == [1]
    assert look.places[BLOCKS] == BLOCKS
    assert look.places[2] == BLOCKS + 1


def test_nobody_goes_on_without_enough_spare_blocks():
    look = look_ahead(spares=1)
    assert guess(look, step(decoding(0, 4, [3]), decoding(1, 4, [5]))) == ()
    assert len(guess(look, step(decoding(0, 4, [3])))) == 1


def test_what_comes_true_is_found_whatever_else_is_planned():
    look = look_ahead()
    a, b, c = (decoding(index, 2, [index]) for index in range(3))
    plan = step(a, b, c)
    guesses = guess(look, plan)
    go_on(plan, [7, 8, 9])
    new = make_sequence(3, range(3))
    new.blocks = [4]
    assert look.confirm(guesses, [7, 8, 9], step(c, new, a)) == [2, -1, 0]


def other_token(sequence):
    sequence.tokens[-1] += 1


def other_blocks(sequence):
    sequence.blocks[0] = 8


def too_few_blocks(sequence):
    sequence.blocks.pop()


def more_to_compute(sequence):
    sequence.num_computed -= 1


@pytest.mark.parametrize("change", [other_token, other_blocks, too_few_blocks, more_to_compute])
def test_what_is_otherwise_than_it_was_guessed_is_not_true(change):
    look = look_ahead()
    sequence = decoding(0, 5, [1, 2])
    plan = step(sequence)
    guesses = guess(look, plan)
    go_on(plan, [7])
    change(sequence)
    piece = Slice(sequence, sequence.num_computed, sequence.num_pending, samples=True)
    assert look.confirm(guesses, [7], StepPlan((piece,))) == [-1]


def test_another_sequence_with_the_same_numbers_is_another_one():
    look = look_ahead()
    plan = step(decoding(0, 2, [1]))
    guesses = guess(look, plan)
    go_on(plan, [7])
    twin = decoding(0, 2, [1])
    twin.tokens.append(7)
    twin.num_computed = 2
    assert look.confirm(guesses, [7], step(twin)) == [-1]
