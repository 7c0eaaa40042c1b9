import logging
import threading

import pytest

from chairlift.cluster.protocol import (
    Batching,
    Controls,
    FinishReason,
    Refusal,
    SamplingParams,
    TokenLogprobs,
)
from chairlift.workers.fake_runner import FakeRunner
from chairlift.workers.sequence import Admission, SequenceKey, StepPlan, StepResult
from support.engines import Rig, alone, in_thread, replica_info, submission, wait_until


@pytest.fixture
def rig():
    return Rig()


def explode(plan: StepPlan) -> None:
    raise RuntimeError("device lost")


class TestStep:
    def test_an_idle_engine_has_nothing_to_do_and_tells_nothing(self, rig):
        assert rig.engine.step() is False
        assert rig.outputs == []

    def test_a_first_arrival_is_admitted_at_once_and_runs_in_the_next_turn(self, rig):
        rig.submit(1)
        assert rig.engine.step() is True
        assert rig.plans == [] and rig.engine.load.running == 1
        assert rig.engine.step() is True
        assert rig.planned() == [1]

    def test_answers_are_those_of_each_sequence_alone(self, rig):
        keys = {
            rig.submit(handle, range(handle + 1), seed=handle, max_tokens=handle + 2): handle
            for handle in range(9)
        }
        rig.run_until_idle()
        for key, handle in keys.items():
            sampling = SamplingParams(max_tokens=handle + 2, seed=handle)
            assert rig.answer(key) == alone(range(handle + 1), sampling)

    def test_cached_tokens_and_log_probabilities_are_passed_on(self):
        class Scored(FakeRunner):
            def advance(self, plan):
                result = super().advance(plan)
                found = {i: TokenLogprobs(-float(i)) for i in range(len(result.tokens))}
                prompts = {i: (TokenLogprobs(-9.0),) for i, p in enumerate(plan.slices) if p.start}
                return StepResult(result.tokens, found, prompts)

        rig = Rig(runner=Scored(1000, block_size=4))
        for handle in range(2):
            rig.submit(handle, range(6), max_tokens=1)
            rig.run_until_idle()
        (delta,) = rig.outputs[-1].deltas[0]
        assert (delta.cached_tokens, delta.logprobs) == (4, (TokenLogprobs(-0.0),))
        assert delta.prompt_logprobs == (TokenLogprobs(-9.0),)

    def test_choices_differ_by_their_index(self, rig):
        rig.submit(5, (1, 2), n=3, seed=9)
        rig.run_until_idle()
        for choice in range(3):
            expected = alone((1, 2), SamplingParams(max_tokens=4, seed=9), choice)
            assert rig.answer(SequenceKey(0, 5 + choice)) == expected

    def test_an_arrival_during_a_step_runs_in_the_next_one(self, rig):
        rig.submit(1)
        rig.engine.step()
        rig.during_advance = lambda plan: rig.submit(2) and None
        rig.engine.step()
        rig.during_advance = lambda plan: None
        rig.engine.step()
        assert rig.planned() == [1, 2]

    def test_a_finished_short_answer_is_replaced_in_the_next_step(self):
        rig = Rig(Controls(max_sequences=2))
        rig.submit(1, max_tokens=6)
        rig.submit(2, max_tokens=2)
        rig.submit(3, max_tokens=3)
        rig.run_until_idle()
        handles = [[piece.sequence.key.handle for piece in plan.slices] for plan in rig.plans]
        assert handles == [[1, 2], [1, 2], [1, 3], [1, 3], [1, 3], [1]]

    def test_modes_switch_live(self):
        rig = Rig(Controls(max_sequences=2))
        for handle, max_tokens in ((1, 4), (2, 1), (3, 2), (4, 2)):
            rig.submit(handle, max_tokens=max_tokens)
        rig.engine.step()
        rig.intake.set_controls(Controls(1, Batching.STATIC, max_sequences=2))
        rig.run_until_idle()
        handles = [[piece.sequence.key.handle for piece in plan.slices] for plan in rig.plans]
        assert handles == [[1, 2], [1], [1], [1], [3, 4], [3, 4]]

    def test_news_are_grouped_by_stream(self, rig):
        rig.submit(1, origin=1)
        rig.submit(1, origin=2)
        rig.submit(2, origin=2)
        rig.engine.step(), rig.engine.step()
        deltas = rig.outputs[-1].deltas
        assert {o: [d.handle for d in part] for o, part in deltas.items()} == {1: [1], 2: [1, 2]}

    def test_load_counts_steps_and_is_published(self, rig):
        rig.submit(1, max_tokens=2)
        rig.run_until_idle()
        assert [output.load.step for output in rig.outputs] == [1, 2, 3]
        assert rig.outputs[-1].load == rig.engine.load
        assert (rig.engine.load.running, rig.engine.load.blocks_used) == (0, 0)
        assert (rig.engine.load.tokens_computed, rig.engine.load.tokens_generated) == (4, 2)


class TestCancel:
    def test_before_the_arrival_was_seen(self, rig):
        key = rig.submit(1)
        rig.intake.cancel(0, [1])
        rig.run_until_idle()
        assert rig.answer(key) == ((), FinishReason.CANCELLED)
        assert rig.plans == []

    def test_while_waiting(self):
        rig = Rig(Controls(max_sequences=1))
        rig.submit(1), rig.submit(2)
        rig.engine.step()
        rig.intake.cancel(0, [2])
        rig.run_until_idle()
        assert rig.answer(SequenceKey(0, 2)) == ((), FinishReason.CANCELLED)

    def test_between_steps(self, rig):
        key = rig.submit(1)
        rig.engine.step(), rig.engine.step()
        rig.intake.cancel(0, [1])
        rig.run_until_idle()
        tokens, ending = rig.answer(key)
        assert (len(tokens), ending) == (1, FinishReason.CANCELLED)

    def test_during_a_step_emits_no_token(self, rig):
        key = rig.submit(1)
        rig.during_advance = lambda plan: rig.intake.cancel(0, [1])
        rig.run_until_idle()
        assert rig.answer(key) == ((), FinishReason.CANCELLED)

    def test_in_the_middle_of_a_prompt(self):
        rig = Rig(Controls(token_budget=2))
        key = rig.submit(1, range(9))
        rig.engine.step(), rig.engine.step()
        rig.intake.cancel(0, [1])
        rig.run_until_idle()
        assert rig.answer(key) == ((), FinishReason.CANCELLED)

    def test_after_the_end_is_harmless(self, rig):
        key = rig.submit(1, max_tokens=1)
        rig.run_until_idle()
        rig.intake.cancel(0, [1])
        assert rig.engine.step() is False
        assert rig.answer(key)[1] is FinishReason.LENGTH

    def test_frees_the_seat_in_the_same_step(self):
        rig = Rig(Controls(max_sequences=1))
        rig.submit(1), rig.submit(2)
        rig.engine.step()
        rig.during_advance = lambda plan: rig.intake.cancel(0, [1])
        rig.engine.step(), rig.engine.step()
        assert rig.planned() == [2]

    def test_at_the_brim_again_and_again_leaves_room(self):
        """Seats and waiting places all taken, half of them given up, most while others wait."""
        rig = Rig(Controls(max_sequences=4, token_budget=8), info=replica_info(blocks_total=12))
        for turn in range(20):
            handles = range(100 * turn, 100 * turn + 12)
            for handle in handles:
                rig.submit(handle, range(1, 12), max_tokens=6)
            assert rig.intake.submit(0, submission(99_999)).refusal is Refusal.QUEUE_FULL
            for handle in handles[turn % 2 :: 2]:
                rig.intake.cancel(0, [handle])
                rig.engine.step()
            rig.run_until_idle()
            assert (rig.intake.num_open, rig.engine.load.blocks_used) == (0, 0)
        assert len([heard for heard in rig.heard.values() if heard.endings]) == 20 * 12


class TestLeave:
    def test_nothing_is_told_to_a_stream_that_left(self, rig):
        rig.submit(1, origin=1)
        rig.submit(2, origin=2)
        rig.engine.step()
        rig.during_advance = lambda plan: rig.intake.leave(1)
        rig.run_until_idle()
        assert list(rig.heard) == [SequenceKey(2, 2)]
        assert rig.intake.num_open == 0

    def test_a_stream_that_left_at_once_is_no_trouble(self, rig):
        rig.submit(1)
        rig.intake.leave(0)
        rig.run_until_idle()
        assert rig.heard == {} and rig.intake.num_open == 0


class TestFailingRunner:
    def test_ends_the_step_and_spares_the_others(self, rig, caplog):
        failing = rig.submit(1)
        rig.engine.step()

        def arrive_and_explode(plan: StepPlan) -> None:
            rig.submit(2)
            raise RuntimeError("device lost")

        rig.during_advance = arrive_and_explode
        rig.engine.step()
        rig.during_advance = lambda plan: None
        rig.run_until_idle()
        assert rig.answer(failing) == ((), FinishReason.FAILED)
        assert rig.answer(SequenceKey(0, 2)) == alone((1, 2, 3), SamplingParams(4))
        assert rig.engine.failed is None
        assert "device lost" in caplog.text

    def test_is_reported_after_three_failures_in_a_row(self, rig):
        rig.during_advance = explode
        for handle in range(3):
            assert rig.engine.failed is None
            rig.submit(handle)
            rig.run_until_idle()
        assert rig.engine.failed is not None and "device lost" in rig.engine.failed

    def test_is_sound_again_after_a_step_that_works(self, rig):
        rig.during_advance = explode
        for handle in range(3):
            rig.submit(handle)
            rig.run_until_idle()
        rig.during_advance = lambda plan: None
        rig.submit(3)
        rig.run_until_idle()
        assert rig.engine.failed is None

    def test_a_wrong_number_of_tokens_counts_as_failure(self):
        class Forgetful:
            def advance(self, plan: StepPlan) -> StepResult:
                return StepResult([])

        rig = Rig(runner=Forgetful())
        key = rig.submit(1)
        rig.run_until_idle()
        assert rig.answer(key) == ((), FinishReason.FAILED)


class TestRun:
    def test_wakes_from_idle_for_every_request(self, rig):
        with in_thread(rig):
            for handle in range(3):
                key = rig.submit(handle)
                wait_until(lambda key=key: key in rig.heard and rig.heard[key].endings)
                assert rig.answer(key) == alone((1, 2, 3), SamplingParams(4))

    def test_sleeps_while_there_is_nothing_to_do(self, rig, monkeypatch):
        """A loop that polls burns a core of the machine that it shares."""
        turns = []
        original = rig.engine.step
        monkeypatch.setattr(rig.engine, "step", lambda: turns.append(1) or original())
        with in_thread(rig) as thread:
            rig.submit(1)
            wait_until(lambda: rig.intake.num_open == 0)
            thread.join(timeout=0.05)
            assert len(turns) <= 8

    def test_stop_ends_what_is_open_and_refuses_what_comes(self):
        rig = Rig(Controls(max_sequences=1))
        gate = threading.Event()
        rig.during_advance = lambda plan: gate.wait() and None
        rig.submit(1), rig.submit(2)
        with in_thread(rig) as thread:
            wait_until(lambda: len(rig.plans) == 1)
            rig.engine.stop()
            gate.set()
            thread.join(timeout=10)
            late = rig.intake.submit(0, submission(9))
        assert rig.answer(SequenceKey(0, 1)) == (
            alone((1, 2, 3), SamplingParams(1))[0],
            FinishReason.FAILED,
        )
        assert rig.answer(SequenceKey(0, 2)) == ((), FinishReason.FAILED)
        assert late.refusal is Refusal.DRAINING
        assert rig.intake.num_open == 0 and rig.engine.load.running == 0
        assert rig.engine.failed is None

    def test_stop_before_the_start_ends_at_once(self, rig):
        key = rig.submit(1)
        rig.engine.stop()
        rig.engine.run()
        assert rig.answer(key) == ((), FinishReason.FAILED)

    def test_a_stop_during_an_idle_turn_is_not_slept_through(self, rig, monkeypatch):
        """The turn's second look into the intake takes the wake-up away."""
        plan = rig.scheduler.plan

        def stop_and_plan() -> StepPlan:
            rig.engine.stop()
            return plan()

        monkeypatch.setattr(rig.scheduler, "plan", stop_and_plan)
        thread = threading.Thread(target=rig.engine.run, daemon=True)
        thread.start()
        thread.join(timeout=10)
        assert not thread.is_alive()

    def test_draining_finishes_what_was_accepted(self, rig):
        keys = [rig.submit(handle) for handle in range(6)]
        rig.intake.close()
        with in_thread(rig):
            wait_until(lambda: rig.intake.num_open == 0)
        assert {rig.answer(key)[1] for key in keys} == {FinishReason.LENGTH}

    @pytest.mark.parametrize("stage", ["plan", "retire", "refill", "add", "cancel"])
    def test_a_fault_in_the_scheduler_ends_everything_and_is_reported(
        self, rig, monkeypatch, stage, caplog
    ):
        """The alternative is a thread that died in silence, and clients that wait for ever."""
        keys = [rig.submit(handle) for handle in range(6)]
        rig.engine.step(), rig.engine.step()

        def bug(*_):
            raise IndexError("bug")

        monkeypatch.setattr(rig.scheduler, stage, bug)
        rig.engine.run()
        assert {rig.answer(key)[1] for key in keys} == {FinishReason.FAILED}
        assert rig.engine.failed is not None and "bug" in rig.engine.failed
        assert rig.intake.submit(0, submission(9)).refusal is Refusal.DRAINING
        assert "the engine's loop failed" in caplog.text

    def test_waiting_for_ever_counts_as_a_fault(self, rig, monkeypatch, caplog):
        key = rig.submit(1)
        monkeypatch.setattr(rig.scheduler, "refill", Admission)
        rig.engine.run()
        assert rig.answer(key) == ((), FinishReason.FAILED)
        assert "none can run" in (rig.engine.failed or "")

    def test_a_failing_sink_does_not_end_the_loop(self, rig, monkeypatch, caplog):
        key = rig.submit(1, max_tokens=3)
        listen = rig._listen

        def fail_once(output):
            monkeypatch.setattr(rig.engine, "_sink", listen)
            raise ConnectionError("nobody there")

        monkeypatch.setattr(rig.engine, "_sink", fail_once)
        with caplog.at_level(logging.ERROR):
            rig.run_until_idle()
        assert rig.answer(key)[1] is FinishReason.LENGTH
        assert "the sink failed" in caplog.text

    def test_every_accepted_sequence_ends_once_under_threads(self):
        rig = Rig(info=replica_info(blocks_total=12, max_sequence_tokens=48))
        accepted: list[SequenceKey] = []

        def bring(origin: int) -> None:
            for handle in range(40):
                answer = rig.intake.submit(origin, submission(handle, max_tokens=handle % 9 + 1))
                if answer.refusal is None:
                    accepted.append(SequenceKey(origin, handle))
                    if handle % 3 == 0:
                        rig.intake.cancel(origin, [handle])

        with in_thread(rig):
            threads = [threading.Thread(target=bring, args=(origin,)) for origin in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            wait_until(lambda: rig.intake.num_open == 0)
        assert set(rig.heard) == set(accepted)
        for key in accepted:
            tokens, ending = rig.answer(key)
            expected = alone((1, 2, 3), SamplingParams(key.handle % 9 + 1))
            if ending is FinishReason.CANCELLED:
                assert key.handle % 3 == 0 and tokens == expected[0][: len(tokens)]
            else:
                assert (tokens, ending) == expected


def test_stuck_for_tells_how_long_the_step_has_taken():
    now = 100.0
    rig = Rig(clock=lambda: now)
    seen = []

    def take_long(plan: StepPlan) -> None:
        nonlocal now
        now += 7.5
        seen.append(rig.engine.stuck_for())

    rig.during_advance = take_long
    rig.submit(1, max_tokens=1)
    assert rig.engine.stuck_for() == 0.0
    rig.run_until_idle()
    assert seen == [7.5]
    assert rig.engine.stuck_for() == 0.0
