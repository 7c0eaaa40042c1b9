"""Loops of several ranks stay together, and end when they cannot."""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from chairlift.cluster.protocol import Controls, Delta, FinishReason, SamplingParams
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.engine import Engine, StepOutput
from chairlift.workers.fake_runner import FakeRunner
from chairlift.workers.intake import Intake
from chairlift.workers.rank_faults import RankLost
from chairlift.workers.ranks import (
    AgreeingRunner,
    FollowerIntake,
    LeadingIntake,
    plan_digest,
    same_number,
)
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Slice, StepPlan
from support.engines import GOES_ON, alone, replica_info, sequence, submission, wait_until
from support.ranks import ThreadGroup, thread_groups


@dataclass
class Rank:
    """One rank's loop, and what its sink was told of handle 1."""

    group: ThreadGroup
    intake: Intake | None
    scheduler: Scheduler
    engine: Engine
    thread: threading.Thread
    deltas: list[Delta]

    def ended(self) -> bool:
        self.thread.join(timeout=10)
        return not self.thread.is_alive()

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for delta in self.deltas for token in delta.tokens)

    @property
    def finish(self) -> FinishReason | None:
        return self.deltas[-1].finish if self.deltas else None


@contextmanager
def two_ranks(delay: Callable[[int], None] = lambda rank: None) -> Iterator[tuple[Rank, Rank]]:
    """``delay`` is called by each before it computes a step; may raise."""
    ranks = [_rank(group, delay) for group in thread_groups(2)]
    for rank in ranks:
        rank.thread.start()
    first, second = ranks
    try:
        yield first, second
    finally:
        first.engine.stop()
        assert first.ended() and second.ended()


def _rank(group: ThreadGroup, delay: Callable[[int], None]) -> Rank:
    info = replica_info()
    deltas: list[Delta] = []

    def listen(output: StepOutput) -> None:
        deltas.extend(delta for each in output.deltas.values() for delta in each)

    intake = Intake(info) if group.rank == 0 else None
    source = LeadingIntake(intake, group) if intake is not None else FollowerIntake(group)
    scheduler = Scheduler(BlockPool(info.blocks_total, info.block_size), Controls(), ())
    runner = FakeRunner(
        info.vocab_size, block_size=info.block_size, delay=lambda _: delay(group.rank)
    )
    engine = Engine(scheduler, AgreeingRunner(runner, group), source, listen)

    def run() -> None:  # as a replica does
        engine.run()
        if engine.failed is not None:
            group.close()

    return Rank(group, intake, scheduler, engine, threading.Thread(target=run, daemon=True), deltas)


def test_every_rank_comes_to_the_same_tokens_and_stop_ends_them_all():
    with two_ranks() as (first, second):
        first.intake.submit(0, submission(1, max_tokens=20, seed=3))
        wait_until(lambda: second.finish is not None)
        first.engine.stop()
        assert first.ended() and second.ended()
    expected = alone((1, 2, 3), SamplingParams(20, seed=3))
    assert (first.tokens, first.finish) == (second.tokens, second.finish) == expected
    assert first.engine.failed is None and second.engine.failed is None


def test_hand_over_reaches_every_rank():
    with two_ranks() as (first, second):
        first.intake.submit(0, submission(1, max_tokens=GOES_ON.max_tokens))
        wait_until(lambda: len(second.tokens) > 3)
        first.engine.hand_over()
        wait_until(lambda: second.finish is not None)
        assert first.finish is second.finish is FinishReason.HANDED_OVER
        assert first.scheduler.num_open == second.scheduler.num_open == 0


def test_an_idle_rank_waits_without_being_in_a_step():
    """One that waits for rank 0's word must not look as if its step took for ever."""
    with two_ranks() as (first, second):
        first.intake.submit(0, submission(1, max_tokens=1))
        wait_until(lambda: second.finish is not None)
        wait_until(lambda: first.engine.stuck_for() == second.engine.stuck_for() == 0.0)


def test_ranks_that_plan_otherwise_hand_everything_over_before_they_compute():
    with two_ranks() as (first, second):
        first.intake.submit(0, submission(1, max_tokens=GOES_ON.max_tokens))
        wait_until(lambda: len(first.tokens) > 3)
        second.scheduler.set_controls(dataclasses.replace(Controls(), version=1, token_budget=2))
        first.intake.submit(0, submission(2, range(10)))
        assert first.ended() and second.ended()
    assert first.finish is FinishReason.HANDED_OVER
    assert first.intake.num_open == 0
    assert "RanksDiffer" in first.engine.failed and "RanksDiffer" in second.engine.failed
    assert first.tokens == alone((1, 2, 3), GOES_ON)[0][: len(first.tokens)]


def test_ranks_that_sampled_otherwise_differ_in_the_next_step():
    with two_ranks() as (first, second):
        first.intake.submit(0, submission(1, max_tokens=GOES_ON.max_tokens))
        wait_until(lambda: len(second.tokens) > 3)
        second.scheduler.running[0].tokens[-1] ^= 1
        assert first.ended() and second.ended()
    assert first.finish is FinishReason.HANDED_OVER
    assert "RanksDiffer" in first.engine.failed


def test_a_rank_that_is_lost_ends_all_loops_and_hands_over_what_is_open():
    with two_ranks() as (first, second):
        for handle in range(6):
            first.intake.submit(0, submission(handle, max_tokens=GOES_ON.max_tokens))
        wait_until(lambda: len(first.tokens) > 3)
        second.group.close()
        assert first.ended() and second.ended()
    ends = [delta for delta in first.deltas if delta.finish is not None]
    assert sorted(delta.handle for delta in ends) == list(range(6))
    assert {delta.finish for delta in ends} == {FinishReason.HANDED_OVER}
    assert "RankLost" in first.engine.failed


def test_a_loss_in_the_middle_of_a_step_is_no_failed_step():
    """Else what the step ran would end as failed, and the loop would go on by itself."""

    def lose(rank: int) -> None:
        if rank == 0:
            raise RankLost("rank 1 is silent")

    with two_ranks(lose) as (first, second):
        first.intake.submit(0, submission(1))
        assert first.ended() and second.ended()
    assert first.finish is FinishReason.HANDED_OVER
    assert "rank 1 is silent" in first.engine.failed


def test_a_step_that_fails_on_one_rank_only_ends_the_group():
    def fail(rank: int) -> None:
        if rank == 1:
            raise MemoryError("no room")

    with two_ranks(fail) as (first, second):
        first.intake.submit(0, submission(1, max_tokens=GOES_ON.max_tokens))
        assert first.ended() and second.ended()
    assert first.finish is FinishReason.HANDED_OVER


def test_a_step_that_fails_on_every_rank_ends_its_sequences_alone():
    failing = [True, True]

    def fail_once(rank: int) -> None:
        if failing[rank]:
            failing[rank] = False
            raise RuntimeError("injected")

    with two_ranks(fail_once) as (first, second):
        first.intake.submit(0, submission(1))
        wait_until(lambda: first.finish is not None)
        assert first.finish is FinishReason.FAILED
        first.intake.submit(0, submission(1))
        wait_until(lambda: second.finish is FinishReason.LENGTH)


def test_a_word_that_cannot_be_read_is_a_difference():
    first, second = thread_groups(2)
    thread = threading.Thread(target=first.share, args=(b"?",))
    thread.start()
    with pytest.raises(Exception, match="cannot read"):
        FollowerIntake(second).drain()
    thread.join()


def test_all_have_the_number_of_rank_0():
    first, second = thread_groups(2)
    found = []
    thread = threading.Thread(target=lambda: found.append(same_number(second, 7)))
    thread.start()
    assert same_number(first, 1 << 40) == 1 << 40
    thread.join()
    assert found == [1 << 40]


def planned(**changes) -> StepPlan:
    """One that decodes and one prompt, but for what is changed of the decoding one."""
    decoding, prompt = sequence(1, range(9)), sequence(2, range(5))
    decoding.blocks, prompt.blocks = [4, 7, 8], [1, 2]
    for name in changes.keys() & {"arrival", "blocks", "tokens"}:
        setattr(decoding, name, changes[name])
    start, samples = changes.get("start", 8), changes.get("samples", True)
    slices = (Slice(decoding, start, 1, samples), Slice(prompt, 0, changes.get("count", 5), True))
    slices = slices[::-1] if changes.get("swapped") else slices
    return StepPlan(slices, tuple(changes.get("preempted", ())))


@pytest.mark.parametrize(
    "change",
    [
        {"arrival": 3},
        {"blocks": [4, 7, 9]},
        {"blocks": [4, 7, 8, 8]},
        {"tokens": [*range(8), 9]},
        {"start": 7},
        {"samples": False},
        {"count": 4},
        {"swapped": True},
        {"preempted": [sequence(5)]},
    ],
    ids=str,
)
def test_a_digest_is_of_all_that_a_step_depends_on(change):
    assert plan_digest(planned()) == plan_digest(planned())
    assert plan_digest(planned(**change)) != plan_digest(planned())


def test_blocks_that_a_prompt_has_found_count_all():
    prompt, other = sequence(2, range(9)), sequence(2, range(9))
    prompt.blocks, other.blocks = [1, 2, 3], [1, 9, 3]
    digests = {plan_digest(StepPlan((Slice(each, 4, 5, True),))) for each in (prompt, other)}
    assert len(digests) == 2


def test_digests_are_64_bits():
    assert 0 <= plan_digest(planned()) < 1 << 64
