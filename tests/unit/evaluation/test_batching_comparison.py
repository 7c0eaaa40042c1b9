from __future__ import annotations

from dataclasses import replace

import pytest

from chairlift.cluster.protocol import Batching
from chairlift.evaluation.batching_comparison import (
    Round,
    StudyPlan,
    compare,
    draw_work,
    run_round,
)
from chairlift.evaluation.engine_run import EngineRun, EngineSizes, Work
from chairlift.workers.fake_runner import FakeRunner

PLAN = StudyPlan(
    prompt_lengths="uniform:2,5",
    output_lengths="uniform:1,9",
    seats=2,
    requests=6,
    rounds=2,
    rate=None,
    seed=1,
)
SIZES = EngineSizes(seats=2, token_budget=64, num_blocks=64, block_size=4, vocab_size=100)


def timed(batching: Batching, seconds: float) -> EngineRun:
    return EngineRun(
        batching=batching,
        seconds=seconds,
        steps=10,
        occupied=12,
        preemptions=0,
        output_tokens=12,
        first_token=(1.0,),
        latency=(seconds,),
        digests=("d",),
    )


def timed_round(continuous: float, static: float, outputs: list[int], at_s: float = 0.0) -> Round:
    runs = {
        Batching.CONTINUOUS: timed(Batching.CONTINUOUS, continuous),
        Batching.STATIC: timed(Batching.STATIC, static),
        Batching.STATIC_SORTED: timed(Batching.STATIC_SORTED, continuous),
    }
    return Round(tuple(Work(at_s, (1,), output) for output in outputs), runs)


def test_every_round_has_its_own_work_and_equal_seeds_have_equal_work() -> None:
    first, second = draw_work(PLAN, vocab_size=100)
    assert first != second
    assert draw_work(PLAN, vocab_size=100) == [first, second]
    assert draw_work(replace(PLAN, seed=2), vocab_size=100) != [first, second]
    assert all(1 <= one.output <= 9 and 2 <= len(one.prompt) <= 5 for one in first)
    assert {one.at_s for one in first} == {0.0}


def test_with_a_rate_the_work_arrives_over_time() -> None:
    (work, _) = draw_work(replace(PLAN, rate=4.0), vocab_size=100)
    times = [one.at_s for one in work]
    assert times == sorted(times) and len(set(times)) == 6


def test_the_modes_take_turns_in_both_directions() -> None:
    work = draw_work(PLAN, vocab_size=100)
    runner = FakeRunner(100, block_size=4)
    orders = []
    for number in range(3):
        order: list[Batching] = []
        run_round(
            number, work[0], runner, SIZES, lambda run, order=order: order.append(run.batching)
        )
        orders.append(order)
    assert orders[0] == [Batching.CONTINUOUS, Batching.STATIC, Batching.STATIC_SORTED]
    assert orders[1] == orders[0][::-1]
    assert orders[2] == orders[0]


def test_each_round_gives_one_ratio_against_its_own_ceiling() -> None:
    rounds = [timed_round(2.0, 3.0, [1, 9, 2, 2]), timed_round(2.0, 2.5, [8, 1, 8, 1])]
    comparison = compare(rounds, Batching.STATIC, seats=2)
    assert comparison.ratios == (1.5, 1.25)
    assert comparison.median_ratio == 1.375
    # Steps: (9 + 2) over max(14 / 2, 9), and (8 + 8) over max(18 / 2, 8).
    assert comparison.ceilings == pytest.approx((11 / 9, 16 / 9))
    assert comparison.above_ceiling


def test_a_ratio_below_its_ceiling_is_sound() -> None:
    assert not compare([timed_round(2.0, 2.2, [1, 9, 2, 2])], Batching.STATIC, 2).above_ceiling


def test_the_sorted_baseline_is_held_against_its_own_steps() -> None:
    rounds = [timed_round(2.0, 2.0, [8, 1, 8, 1])]
    comparison = compare(rounds, Batching.STATIC_SORTED, seats=2)
    assert comparison.ceilings == pytest.approx((10 / 9,))


def test_work_that_arrives_over_time_has_no_ceiling() -> None:
    comparison = compare([timed_round(1.0, 9.0, [1, 9], at_s=0.5)], Batching.STATIC, seats=2)
    assert comparison.ceilings is None
    assert not comparison.above_ceiling
