from __future__ import annotations

import pytest

from chairlift.cluster.protocol import Batching
from chairlift.evaluation.engine_run import EngineRun, EngineSizes, Work, run_engine
from chairlift.workers.fake_runner import FakeRunner
from chairlift.workers.sequence import StepPlan, StepResult

SIZES = EngineSizes(seats=2, token_budget=64, num_blocks=64, block_size=4, vocab_size=100)
WORK = [Work(0.0, (1, 2, 3), output) for output in (8, 1, 1, 1)]


class StepClock:
    """Time that passes by one second at each forward pass, and by that alone."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def step(self, _plan: StepPlan) -> None:
        self.now += 1.0


def run(
    batching: Batching,
    work: list[Work],
    sizes: EngineSizes = SIZES,
    in_flight: int | None = None,
) -> EngineRun:
    clock = StepClock()
    runner = FakeRunner(sizes.vocab_size, block_size=sizes.block_size, delay=clock.step)
    return run_engine(work, batching, runner, sizes, clock, in_flight=in_flight)


def test_continuous_batching_refills_the_seat_beside_a_long_output() -> None:
    result = run(Batching.CONTINUOUS, WORK)
    assert (result.steps, result.occupied, result.output_tokens) == (8, 11, 11)
    assert result.seconds == 8.0
    assert result.output_tokens_per_s == 11 / 8
    assert result.latency == (8.0, 1.0, 2.0, 3.0)
    assert result.first_token == (1.0, 1.0, 2.0, 3.0)


def test_static_batching_leaves_that_seat_empty() -> None:
    result = run(Batching.STATIC, WORK)
    assert (result.steps, result.occupied) == (9, 11)
    assert result.latency == (8.0, 1.0, 9.0, 9.0)


def test_with_a_limit_a_request_comes_when_another_has_ended_and_counts_from_then() -> None:
    result = run(Batching.CONTINUOUS, WORK, in_flight=1)
    assert (result.steps, result.occupied) == (11, 11)
    assert result.latency == (8.0, 1.0, 1.0, 1.0)
    assert result.first_token == (1.0, 1.0, 1.0, 1.0)


def test_all_modes_give_the_same_tokens() -> None:
    assert len({run(mode, WORK).digests for mode in Batching}) == 1


def test_other_prompts_give_other_tokens() -> None:
    other = [Work(0.0, (1, 2, 4), one.output) for one in WORK]
    assert run(Batching.STATIC, other).digests[0] != run(Batching.STATIC, WORK).digests[0]


def test_latency_counts_from_the_arrival() -> None:
    work = [Work(0.0, (1,), 3), Work(2.0, (1,), 2)]
    result = run(Batching.CONTINUOUS, work)
    # The second one arrives during step 2, is admitted after it or after step 3.
    assert result.latency[0] == 3.0
    assert result.latency[1] == result.seconds - 2.0


def test_work_that_cannot_fit_is_an_error() -> None:
    small = EngineSizes(seats=1, token_budget=8, num_blocks=1, block_size=4, vocab_size=100)
    with pytest.raises(RuntimeError, match="refused: TOO_LONG"):
        run(Batching.STATIC, [Work(0.0, (1, 2, 3), 4)], small)


def test_a_request_that_ends_early_is_an_error() -> None:
    class Broken:
        def advance(self, plan: StepPlan) -> StepResult:
            raise ValueError("no")

    with pytest.raises(RuntimeError, match="8 tokens were due, 0 came"):
        run_engine(WORK, Batching.STATIC, Broken(), SIZES, StepClock())


def test_waiting_for_an_arrival_takes_real_time() -> None:
    """An idle engine sleeps until the next request is due instead of ending or spinning."""
    runner = FakeRunner(SIZES.vocab_size, block_size=SIZES.block_size)
    result = run_engine([Work(0.01, (1,), 1)], Batching.CONTINUOUS, runner, SIZES)
    assert result.steps == 1
    assert result.seconds >= 0.01
