"""A scheduler driven by hand, step by step, with the fake model as its runner."""

from chairlift.cluster.protocol import Controls, FinishReason
from chairlift.workers.block_pool import BlockPool
from chairlift.workers.fake_runner import FakeRunner
from chairlift.workers.scheduler import Scheduler
from chairlift.workers.sequence import Admission, Sequence, StepPlan


class Bench:
    """A scheduler, its pool and its runner."""

    def __init__(self, *, blocks=100, block_size=4, eos=(), prefix_cache=False, **controls) -> None:
        self.pool = BlockPool(blocks, block_size)
        settings = {"token_budget": 64, "max_sequences": 4} | controls
        self.scheduler = Scheduler(self.pool, Controls(**settings), eos, prefix_cache=prefix_cache)
        self.plan = StepPlan(())
        self.admission = Admission()
        self.runner = FakeRunner(1000, block_size=block_size)

    def admit(self, *sequences: Sequence) -> list[int]:
        self.scheduler.add(sequences)
        self.admission = self.scheduler.refill()
        return [each.arrival for each in self.admission.admitted]

    def turn(self, cancelled=()):
        """One step; returns the plan as (arrival, start, count), and the outcomes by arrival."""
        self.plan = plan = self.scheduler.plan()
        result = self.runner.advance(plan)
        outcomes = self.scheduler.retire(plan, result, cancelled)
        self.admission = self.scheduler.refill()
        self.scheduler.check_integrity()
        assert plan.num_tokens <= self.scheduler.controls.token_budget
        return shape(plan), {outcome.key.handle: outcome for outcome in outcomes}

    def turns_until_idle(self) -> dict[int, FinishReason]:
        ended = {}
        for _ in range(1000):
            shape_, outcomes = self.turn()
            ended |= {handle: o.finish for handle, o in outcomes.items() if o.finish}
            if not shape_ and not self.scheduler.num_open:
                return ended
        raise AssertionError("still busy")

    def running(self) -> list[int]:
        return [each.arrival for each in self.scheduler.running]

    def waiting(self) -> list[int]:
        """In order of service."""
        return [each.arrival for each in self.scheduler.waiting]


def shape(plan: StepPlan) -> list[tuple[int, int, int]]:
    return [(piece.sequence.arrival, piece.start, piece.count) for piece in plan.slices]


def output_of(made: Sequence) -> tuple[int, ...]:
    return tuple(made.tokens[made.num_prompt :])
