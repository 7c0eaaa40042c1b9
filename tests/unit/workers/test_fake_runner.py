import pytest

from chairlift.workers.fake_runner import FakeRunner, fake_token
from chairlift.workers.sequence import Sequence, Slice, Status, StepPlan
from support.engines import sequence


def running(arrival: int, prompt, blocks: list[int]) -> Sequence:
    made = sequence(arrival, prompt)
    made.status, made.blocks = Status.RUNNING, blocks
    return made


def whole(made: Sequence) -> Slice:
    return Slice(made, made.num_computed, made.num_pending, samples=True)


def take_in(plan: StepPlan, tokens) -> None:
    for piece, token in zip(plan.slices, tokens, strict=True):
        piece.sequence.num_computed += piece.count
        piece.sequence.tokens.append(token)


@pytest.fixture
def runner():
    return FakeRunner(100, block_size=2)


def test_token_depends_on_prefix_seed_and_choice_alone():
    token = fake_token((1, 2, 3), seed=7, choice=0, vocab_size=10**6)
    assert token == fake_token([1, 2, 3], seed=7, choice=0, vocab_size=10**6)
    others = {
        fake_token((1, 3, 2), 7, 0, 10**6),
        fake_token((0, 1, 2, 3), 7, 0, 10**6),
        fake_token((1, 2, 3), 8, 0, 10**6),
        fake_token((1, 2, 3), 7, 1, 10**6),
    }
    assert len(others) == 4 and token not in others


def test_chunks_give_the_token_of_the_whole(runner):
    made = running(0, (5, 6, 7), [4, 9])
    first = Slice(made, 0, 2, samples=False)
    assert list(runner.advance(StepPlan((first,))).tokens) == []
    made.num_computed = 2
    (token,) = runner.advance(StepPlan((whole(made),))).tokens
    assert token == fake_token((5, 6, 7), 0, 0, 100)


def test_delay_sees_the_plan_before_it_runs():
    seen = []
    runner = FakeRunner(100, delay=seen.append)
    plan = StepPlan((whole(running(0, (1,), [0])),))
    runner.advance(plan)
    assert seen == [plan]


def test_a_block_in_two_tables_is_found(runner):
    one, two = running(0, (1, 2, 3), [0, 1]), running(1, (1, 2, 4), [2, 1])
    with pytest.raises(AssertionError, match="shared block 1"):
        runner.advance(StepPlan((whole(one), whole(two))))


def test_sharing_a_block_of_the_same_prefix_is_fine(runner):
    one = running(0, (1, 2, 3), [0, 1])
    plan = StepPlan((whole(one),))
    take_in(plan, runner.advance(plan).tokens)
    two = running(1, (1, 2, 4), [0, 2])
    two.num_computed = 2
    assert list(runner.advance(StepPlan((whole(two),))).tokens) == [
        fake_token((1, 2, 4), 0, 0, 100)
    ]


@pytest.mark.parametrize(
    ("prompt", "salt", "fault"),
    [((9, 2, 4), "", "another prefix"), ((1, 2, 4), "other", "of salt ''")],
)
def test_sharing_a_block_of_another_prefix_or_salt_is_found(runner, prompt, salt, fault):
    runner.advance(StepPlan((whole(running(0, (1, 2, 3), [0, 1])),)))
    two = running(1, prompt, [0, 2])
    two.num_computed, two.cache_salt = 2, salt
    with pytest.raises(AssertionError, match=fault):
        runner.advance(StepPlan((whole(two),)))


def test_writing_to_a_block_that_another_one_shares_is_found(runner):
    """Even where it writes what stands there already: with a real model bits could differ."""
    one, two = running(0, (1, 2, 3), [0, 1]), running(1, (1, 2, 3), [0, 2])
    two.num_computed = 2
    with pytest.raises(AssertionError, match="shared block 0"):
        runner.advance(StepPlan((whole(one), whole(two))))


def test_a_block_that_was_freed_while_in_use_is_found(runner):
    one = running(0, (1, 2), [0, 1])
    plan = StepPlan((whole(one),))
    take_in(plan, runner.advance(plan).tokens)
    runner.advance(StepPlan((whole(running(1, (3, 4), [0])),)))
    with pytest.raises(AssertionError, match="another prefix"):
        runner.advance(StepPlan((whole(one),)))


def test_a_block_table_in_the_wrong_order_is_found(runner):
    one = running(0, (1, 2, 3, 4), [0, 1])
    plan = StepPlan((whole(one),))
    take_in(plan, runner.advance(plan).tokens)
    one.blocks = [1, 0, 2]
    with pytest.raises(AssertionError, match="another prefix"):
        runner.advance(StepPlan((whole(one),)))


@pytest.mark.parametrize(
    ("start", "count", "samples", "fault"),
    [
        (1, 2, True, "starts where the cache ends"),
        (0, 0, False, "has tokens to compute"),
        (0, 4, True, "has tokens to compute"),
        (0, 2, True, "samples at the last token only"),
        (0, 3, False, "samples at the last token only"),
    ],
)
def test_a_slice_that_does_not_fit_its_sequence_is_found(runner, start, count, samples, fault):
    made = running(0, (1, 2, 3), [0, 1])
    with pytest.raises(AssertionError, match=fault):
        runner.advance(StepPlan((Slice(made, start, count, samples),)))


def test_a_sequence_without_a_seat_is_found(runner):
    made = running(0, (1, 2), [0])
    made.status = Status.WAITING
    with pytest.raises(AssertionError, match="runs"):
        runner.advance(StepPlan((whole(made),)))


def test_too_few_blocks_are_found(runner):
    with pytest.raises(AssertionError, match="has blocks"):
        runner.advance(StepPlan((whole(running(0, (1, 2, 3), [0])),)))


def test_a_sequence_that_stands_twice_in_a_plan_is_found(runner):
    made = running(0, (1, 2), [0])
    with pytest.raises(AssertionError, match="twice"):
        runner.advance(StepPlan((whole(made), whole(made))))
