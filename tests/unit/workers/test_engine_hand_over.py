"""An engine that leaves, and one that goes on with what another one began."""

import pytest

from chairlift.cluster.block_names import short_names
from chairlift.cluster.protocol import (
    Controls,
    FinishReason,
    Refusal,
    SamplingParams,
    TokenLogprobs,
)
from chairlift.workers.fake_runner import FakeRunner
from chairlift.workers.sequence import StepPlan, StepResult
from support.engines import Rig, alone, in_thread, replica_info, submission, wait_until


@pytest.fixture
def rig():
    return Rig()


class TestContinue:
    def test_a_choice_gives_the_rest_of_what_it_gives_undisturbed(self, rig):
        sampling = SamplingParams(max_tokens=9, seed=3)
        whole, finish = alone(range(6), sampling, 2)
        for known in range(1, 9):
            key = rig.submit(
                known, range(6), choice=2, output=whole[:known], max_tokens=9, seed=3, n=1
            )
            rig.run_until_idle()
            assert rig.answer(key) == (whole[known:], finish)

    def test_what_goes_with_the_first_token_is_not_told_again(self):
        class Scored(FakeRunner):
            def advance(self, plan):
                result = super().advance(plan)
                found = {i: TokenLogprobs(-float(i)) for i in range(len(result.tokens))}
                prompts = {i: (TokenLogprobs(-9.0),) for i in range(len(plan.slices))}
                return StepResult(result.tokens, found, prompts)

        rig = Rig(runner=Scored(1000, block_size=4))
        for handle in range(2):
            rig.submit(handle, range(6), output=(1,), max_tokens=2)
            rig.run_until_idle()
        (delta,) = rig.outputs[-1].deltas[0]
        assert (delta.cached_tokens, delta.prompt_logprobs) == (0, ())
        assert delta.logprobs == (TokenLogprobs(-0.0),)


class TestHandOver:
    def test_ends_what_waits_and_what_runs_and_refuses_what_comes(self):
        rig = Rig(Controls(max_sequences=1))
        running, waiting = rig.submit(1), rig.submit(2)
        rig.engine.step(), rig.engine.step()
        rig.engine.hand_over()
        assert rig.intake.submit(0, submission(3)).refusal is Refusal.DRAINING
        rig.run_until_idle()
        first = alone((1, 2, 3), SamplingParams(1))[0]
        assert rig.answer(running) == (first, FinishReason.HANDED_OVER)
        assert rig.answer(waiting) == ((), FinishReason.HANDED_OVER)
        assert rig.intake.num_open == rig.engine.load.running == rig.engine.load.blocks_used == 0

    def test_the_tokens_of_the_step_under_way_are_told(self, rig):
        going_on, last = rig.submit(1), rig.submit(2, max_tokens=1)
        rig.during_advance = lambda plan: rig.engine.hand_over()
        rig.run_until_idle()
        first = alone((1, 2, 3), SamplingParams(1))[0]
        assert rig.answer(going_on) == (first, FinishReason.HANDED_OVER)
        assert rig.answer(last) == (first, FinishReason.LENGTH)

    def test_what_is_cancelled_or_fails_meanwhile_is_not_handed_over(self, rig):
        cancelled, failing = rig.submit(1), rig.submit(2)
        rig.engine.step()

        def trouble(plan: StepPlan) -> None:
            rig.engine.hand_over()
            rig.intake.cancel(0, [1])
            raise RuntimeError("device lost")

        rig.during_advance = trouble
        rig.run_until_idle()
        assert rig.answer(cancelled) == ((), FinishReason.CANCELLED)
        assert rig.answer(failing) == ((), FinishReason.FAILED)

    def test_the_loop_goes_on_idle_until_it_is_stopped(self, rig):
        with in_thread(rig) as thread:
            key = rig.submit(1, max_tokens=1000)
            wait_until(lambda: len(rig.plans) > 3)
            rig.engine.hand_over()
            wait_until(lambda: rig.intake.num_open == 0)
            rig.engine.hand_over()
            thread.join(timeout=0.05)
            assert thread.is_alive()
        assert rig.answer(key)[1] is FinishReason.HANDED_OVER
        assert rig.engine.failed is None


class TestBlocks:
    def test_what_the_cache_gains_and_loses_is_told_once(self):
        rig = Rig(info=replica_info(blocks_total=3, max_sequence_tokens=12))
        rig.submit(1, range(9), max_tokens=1)
        rig.run_until_idle()
        (gained,) = [output.blocks for output in rig.outputs if output.blocks is not None]
        assert gained.added == short_names(range(8), "", 4)
        assert (gained.removed, gained.reset) == ((), False)
        rig.submit(2, range(20, 29), max_tokens=1)
        rig.run_until_idle()
        removed = [
            name for output in rig.outputs if output.blocks for name in output.blocks.removed
        ]
        assert set(removed) == set(gained.added)
