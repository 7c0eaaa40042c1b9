"""Runs on a bare engine: what clients see, what is used, and faults that were planted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chairlift.cluster.errors import ConfigError
from chairlift.evaluation.study_arm import Lone, Sizes
from chairlift.evaluation.study_engine import (
    EngineRuns,
    Model,
    Played,
    Time,
    measure_lone,
    open_engine,
    play_engine,
)
from chairlift.evaluation.study_plan import Arm
from chairlift.evaluation.study_run import Fate
from chairlift.evaluation.study_work import Asked, draw
from chairlift.workers.fake_runner import FakeRunner
from chairlift.workers.sequence import StepPlan, StepResult
from support.study_plans import plan_of

SIZES = Sizes(seats=2, token_budget=64, blocks=64, block_size=4)


class StepClock:
    """Time that passes by a second at each forward pass, and while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def step(self, _plan: StepPlan) -> None:
        self.now += 1.0


def model(lone: Lone | None = None) -> Model:
    clock = StepClock()
    runner = FakeRunner(100, block_size=4, delay=clock.step)
    return Model(runner, 100, lone or Lone(), Time(clock, clock.sleep))


def asked(
    *outputs: int, at_s: Sequence[float] = (), patience_s: float | None = None
) -> list[Asked]:
    return [
        Asked(i, f"t{i % 2}", at_s[i] if at_s else 0.0, (30 + i, 31, 32), output, patience_s)
        for i, output in enumerate(outputs)
    ]


def play(work: Sequence[Asked], **arm) -> Played:
    return play_engine(work, Arm(**arm), SIZES, model(Lone(0.5, 1.0)))


def test_every_token_has_its_time_and_latency_counts_from_the_intended_one() -> None:
    played = play(asked(3, 2, at_s=(0.0, 1.5)))
    first, second = played.outcomes
    assert first.tokens_s == (1.0, 2.0, 3.0)
    # It fell due during the second step, and was let in at its end.
    assert second.tokens_s == (3.0, 4.0)
    assert second.first_token_s == 1.5
    assert second.end_to_end_s == 2.5
    assert {each.fate for each in played.outcomes} == {Fate.COMPLETED}
    assert played.seconds == 4.0
    assert first.alone_s == 3 * 0.5 + 3 * 1.0


def test_a_step_under_way_is_no_lag_of_the_generator() -> None:
    played = play(asked(3, 2, 1, at_s=(0.0, 1.5, 20.0)))
    assert [each.sent_s for each in played.outcomes] == [0.0, 1.5, 20.0]


def test_a_slow_generator_lags_by_more_with_each_request() -> None:
    played = play(asked(9, *[1] * 9), planted="slow_generator")
    lags = [each.sent_s - each.intended_s for each in played.outcomes if each.sent_s is not None]
    assert lags[0] == 0.0
    assert max(lags) >= 0.045


def test_arms_give_the_same_tokens() -> None:
    plan = plan_of({"one": {}, "sorted": {"batching": "static-sorted"}, "few": {"seats": 1}})
    runs, work = EngineRuns(plan, model()), draw(plan, "load", 0, 100, None)
    digests = {
        name: [each.digest for each in runs.run(name, "load", 0, 0, work).outcomes]
        for name in plan.arms
    }
    assert None not in digests["one"]
    assert digests["one"] == digests["sorted"] == digests["few"]
    assert len(set(digests["one"])) > 30


def test_seats_have_one_rider_each_and_shares_are_weighted_by_time() -> None:
    played = play(asked(4, 1, 1), batching="static")
    rides = sorted((each.number, each.seat, each.begin_s, each.end_s) for each in played.rides)
    assert rides == [(0, 0, 0.0, 4.0), (1, 1, 0.0, 1.0), (2, 0, 4.0, 5.0)]
    assert played.use.seats == pytest.approx(6 / 10)
    assert played.use.steps == 5
    assert played.use.budget == pytest.approx((6 + 1 + 1 + 1 + 3) / 64 / 5)
    assert 0.0 < (played.use.kv or 0.0) < 0.1
    assert (played.use.preemptions, played.use.recomputed) == (0, 0)


def test_too_few_blocks_preempt() -> None:
    sizes = Sizes(seats=2, token_budget=64, blocks=5, block_size=4)
    played = play_engine(asked(12, 12), Arm(), sizes, model())
    assert (played.use.preemptions or 0) > 0 and (played.use.recomputed or 0) > 0
    reserved = play_engine(asked(12, 12), Arm(reserve=True), sizes, model())
    assert reserved.use.preemptions == 0
    assert [a.digest for a in played.outcomes] == [b.digest for b in reserved.outcomes]


def test_a_client_that_gave_up_is_cancelled_and_frees_its_place() -> None:
    played = play(asked(5, 5, 5, 5, patience_s=2.5))
    fates = [each.fate for each in played.outcomes]
    assert fates == [Fate.COMPLETED, Fate.COMPLETED, Fate.GAVE_UP, Fate.GAVE_UP]
    assert {each.ended_s for each in played.outcomes[2:]} == {2.5}
    assert {each.tokens_s for each in played.outcomes[2:]} == {()}
    assert played.seconds == 5.0


def test_what_cannot_fit_is_refused_and_a_broken_step_fails_its_requests() -> None:
    class Broken:
        def advance(self, plan: StepPlan) -> StepResult:
            raise ValueError("no")

    refused = play(asked(3, 400)).outcomes
    assert [(each.fate, each.why) for each in refused] == [
        (Fate.COMPLETED, ""),
        (Fate.REFUSED, "too_long"),
    ]
    failed = play_engine(asked(3), Arm(), SIZES, Model(Broken(), 100)).outcomes
    assert [(each.fate, each.why) for each in failed] == [(Fate.FAILED, "failed")]


def test_a_seat_given_away_late_takes_more_steps() -> None:
    work = asked(6, *[1] * 8)
    sound, late = play(work), play(work, planted="refill_late")
    assert sound.use.steps == 7
    assert late.use.steps == 9
    assert [a.digest for a in sound.outcomes] == [b.digest for b in late.outcomes]


@pytest.mark.parametrize("batching", ["static", "static-sorted"])
def test_batches_begin_with_all_seats_however_late(batching: str) -> None:
    work = asked(3, 3, 3, 3)
    assert play(work, batching=batching, planted="refill_late").use.steps == 6


def test_a_slower_step_takes_a_twentieth_more() -> None:
    work = asked(5, 5)
    assert play(work, planted="slower_step").seconds == pytest.approx(1.05 * play(work).seconds)


def test_alone_is_measured_from_lone_requests() -> None:
    lone = measure_lone(model(), SIZES, 60)
    assert lone == Lone(0.0, 1.0)
    long = measure_lone(model(), Sizes(2, 8, 64, 4), 60)
    assert long.alone_s(36, 24) == pytest.approx(24 + 4)


def test_arms_of_a_bare_engine_have_no_tenants_and_workloads_fit_the_model() -> None:
    target = {"kind": "engine"}
    plan = plan_of({"one": {"planted": "double_weight"}}, target=target)
    with pytest.raises(ConfigError, match="no tenants"), open_engine(plan, plan.target):
        pass
    limits = {"prompt": 10**6, "output": 1}
    load = {"load": {"source": plan.workloads["load"].source, "requests": 1, "limits": limits}}
    plan = plan_of(workloads=load, target=target)
    with (
        pytest.raises(ConfigError, match="longer than the model's"),
        open_engine(plan, plan.target),
    ):
        pass
