"""Thousands of schedules, and under each the tokens that every sequence gives alone.

What is drawn is what the tokens must not depend on: who else is there, batching mode, chunks, size
of the pool, order, cancellations, prefix cache, preemption.
"""

import os
import random

import pytest

from chairlift.cluster.protocol import Batching, Controls, FinishReason, Priority, SamplingParams
from chairlift.workers.sequence import SequenceKey
from support.engines import Rig, TwoRanksRig, alone, replica_info

SCHEDULES = int(os.environ.get("CHAIRLIFT_TEST_SCHEDULES", "3000"))
VOCAB_SIZE = 50
EOS = (48, 49)
CONTEXT_LENGTH = 40
MOST_STEPS = 5000


Asked = tuple[tuple[int, ...], SamplingParams, int]


class Schedule:
    """One engine, and what happens to it."""

    def __init__(self, seed: int, rig_type: type[Rig]) -> None:
        self.draw = random.Random(seed)
        self.version = 0
        self.due: dict[SequenceKey, Asked] = {}
        self.cancelled: set[SequenceKey] = set()
        self.systems = [[self.draw.randrange(VOCAB_SIZE) for _ in range(20)] for _ in range(2)]
        block_size = self.draw.choice([1, 2, 3, 4, 8])
        least = -(-CONTEXT_LENGTH // block_size)
        info = replica_info(
            vocab_size=VOCAB_SIZE,
            max_sequence_tokens=CONTEXT_LENGTH,
            max_sequences=8,
            max_waiting=64,
            block_size=block_size,
            blocks_total=self.draw.choice([least, least + 3, 2 * least, 10 * least]),
        )
        prefix_cache = self.draw.random() < 0.8
        self.rig = rig_type(self.controls(), info=info, eos=EOS, prefix_cache=prefix_cache)

    def run(self) -> None:
        for _ in range(self.draw.randint(1, 12)):
            self.submit()
            for _ in range(self.draw.choice([0, 0, 1, 5, 30])):
                self.rig.engine.step()
                self.rig.scheduler.check_integrity()
            if self.draw.random() < 0.1:
                self.cancel()
            if self.draw.random() < 0.1:
                self.version += 1
                self.rig.intake.set_controls(self.controls())
        self.rig.run_until_idle(MOST_STEPS)

    def controls(self) -> Controls:
        return Controls(
            self.version,
            self.draw.choice([Batching.CONTINUOUS, Batching.CONTINUOUS, *Batching]),
            token_budget=self.draw.choice([1, 3, 7, 16, 64]),
            max_sequences=self.draw.randint(1, 8),
            fair=self.draw.random() < 0.7,
        )

    def submit(self) -> None:
        system = self.draw.choice(self.systems)
        start = system[: self.draw.randint(0, len(system))]
        tail = [self.draw.randrange(VOCAB_SIZE) for _ in range(self.draw.randint(1, 5))]
        prompt, n = (*start, *tail), self.draw.choice([1, 1, 1, 3])
        sampling = {
            "max_tokens": self.draw.randint(1, 15),
            "seed": self.draw.randrange(4),
            "ignore_eos": self.draw.random() < 0.3,
            "prompt_logprobs": self.draw.choice([None] * 7 + [0]),
        }
        whose = {
            "salt": self.draw.choice(["", "", "salt"]),
            "tenant": self.draw.choice("abc"),
            "priority": self.draw.choice([*Priority, Priority.STANDARD]),
        }
        handle = 3 * len(self.due)
        self.rig.submit(handle, prompt, n=n, **whose, **sampling)
        for choice in range(n):
            self.due[SequenceKey(0, handle + choice)] = prompt, SamplingParams(**sampling), choice

    def cancel(self) -> None:
        victim = self.draw.choice(sorted(self.due))
        if victim in self.rig.intake.open_keys():
            self.rig.intake.cancel(victim.origin, [victim.handle])
            self.cancelled.add(victim)

    def check(self) -> None:
        for key, asked in self.due.items():
            tokens, finish = self.rig.answer(key)
            expected, ending = alone(*asked, eos=EOS, vocab_size=VOCAB_SIZE)
            if key in self.cancelled:
                assert finish is FinishReason.CANCELLED and tokens == expected[: len(tokens)]
            else:
                assert (tokens, finish) == (expected, ending)
        load = self.rig.engine.load
        assert (load.running, load.waiting, load.blocks_used) == (0, 0, 0)
        assert load.tokens_generated == sum(len(self.rig.answer(key)[0]) for key in self.due)
        for plan in self.rig.plans:
            assert 0 < plan.num_tokens <= 64


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("rig_type", [Rig, TwoRanksRig])
def test_tokens_do_not_depend_on_the_schedule(rig_type):
    preemptions = cached = cancelled = 0
    for seed in range(SCHEDULES):
        schedule = Schedule(seed, rig_type)
        try:
            schedule.run()
            schedule.check()
        except Exception as error:
            raise AssertionError(f"schedule {seed} fails") from error
        preemptions += schedule.rig.engine.load.preemptions
        cached += schedule.rig.engine.load.cache_hits
        cancelled += len(schedule.cancelled)
    assert min(preemptions, cached, cancelled) > SCHEDULES // 20, "the draws are too tame"
