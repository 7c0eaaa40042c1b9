"""What the scheduler says besides its decisions: whom it turned down, and log probabilities."""

import pytest

from chairlift.cluster.protocol import Batching, Controls, TokenLogprobs
from chairlift.workers.decisions import Reason
from chairlift.workers.scheduler import Outcome
from chairlift.workers.sequence import StepResult
from support.benches import Bench
from support.engines import sequence


class TestTurnedDown:
    """At each stage, for each reason, the first one and how many; not a list of all."""

    def turned_down(self, decided) -> list[tuple[int, Reason, int]]:
        return [(each.key.handle, each.reason, each.count) for each in decided.turned_down]

    def test_nobody_when_everybody_has_what_he_needs(self):
        bench = Bench()
        bench.admit(sequence(0), sequence(1))
        assert self.turned_down(bench.admission) == []
        bench.turn()
        assert self.turned_down(bench.plan) == []

    def test_running_ones_without_a_token_of_the_budget(self):
        bench = Bench()
        bench.admit(*(sequence(i) for i in range(4)))
        bench.scheduler.set_controls(Controls(version=1, token_budget=5))
        bench.turn()
        assert self.turned_down(bench.plan) == [(2, Reason.BUDGET, 2)]

    def test_the_preempted(self):
        bench = Bench(blocks=4, block_size=2, max_sequences=2)
        old, new = sequence(0, range(3), max_tokens=5), sequence(1, range(3), max_tokens=5)
        bench.admit(old, new)
        for _ in range(3):
            bench.turn()
        assert bench.plan.preempted == (new,)
        assert self.turned_down(bench.plan) == [(1, Reason.NO_BLOCKS, 1)]

    @pytest.mark.parametrize(
        ("changes", "lengths", "reason"),
        [
            ({"max_sequences": 1}, (3, 3, 3), Reason.MAX_SEQUENCES),
            ({"blocks": 2}, (3, 9, 3), Reason.NO_BLOCKS),
            ({"token_budget": 3}, (3, 3, 3), Reason.BUDGET),
            ({"max_sequences": 1, "batching": Batching.STATIC}, (3, 3, 3), Reason.MAX_SEQUENCES),
            ({"blocks": 2, "batching": Batching.STATIC}, (3, 3, 3), Reason.NO_BLOCKS),
            (
                {"max_sequences": 1, "batching": Batching.STATIC_SORTED},
                (3, 3, 3),
                Reason.MAX_SEQUENCES,
            ),
        ],
    )
    def test_the_first_that_waits_and_what_stopped_the_admissions(self, changes, lengths, reason):
        bench = Bench(**changes)
        made = [sequence(i, range(length)) for i, length in enumerate(lengths)]
        assert bench.admit(*made) == [0]
        assert self.turned_down(bench.admission) == [(1, reason, 2)]

    @pytest.mark.parametrize("batching", [Batching.STATIC, Batching.STATIC_SORTED])
    def test_who_came_while_a_static_batch_runs(self, batching):
        bench = Bench(batching=batching)
        bench.admit(sequence(0))
        assert bench.admit(sequence(1)) == []
        assert self.turned_down(bench.admission) == [(1, Reason.BATCH, 1)]


class TestLogprobs:
    def one(self, value: float) -> TokenLogprobs:
        return TokenLogprobs(value)

    def retire(self, bench: Bench, **found) -> Outcome | None:
        plan = bench.scheduler.plan()
        result = StepResult(bench.runner.advance(plan).tokens, **found)
        outcomes = bench.scheduler.retire(plan, result, ())
        return outcomes[-1] if outcomes else None

    def test_those_of_a_token_go_with_it(self):
        bench = Bench()
        bench.admit(sequence(0), sequence(1))
        assert self.retire(bench, logprobs={1: self.one(-1.0)}).logprobs == (self.one(-1.0),)
        assert self.retire(bench).logprobs == ()

    def test_those_of_the_prompt_are_gathered_over_its_chunks_and_told_once(self):
        bench = Bench(token_budget=4)
        bench.admit(sequence(0, range(6), prompt_logprobs=0))
        first, second = (self.one(-1.0), self.one(-2.0), self.one(-3.0)), (self.one(-4.0),) * 2
        assert self.retire(bench, prompt_logprobs={0: first}) is None
        assert self.retire(bench, prompt_logprobs={0: second}).prompt_logprobs == first + second
        assert self.retire(bench).prompt_logprobs == ()

    def test_those_of_the_prompt_start_again_after_preemption_and_are_not_told_twice(self):
        bench = Bench(blocks=4, block_size=2, max_sequences=2)
        old, new = (sequence(i, range(3), max_tokens=5, prompt_logprobs=0) for i in range(2))
        bench.admit(old, new)
        outcome = self.retire(bench, prompt_logprobs={1: (self.one(-1.0),) * 2})
        assert outcome.prompt_logprobs == (self.one(-1.0),) * 2
        told = []
        while new.finish is None:
            row = {0: (self.one(-9.0),) * 2}
            told.append(self.retire(bench, prompt_logprobs=row).prompt_logprobs)
            bench.scheduler.refill()
        assert new.preemptions == 1 and not any(told)
