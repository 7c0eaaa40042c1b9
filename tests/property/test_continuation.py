"""A replica hands over, others go on: together they give what one alone would have given."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.cluster.protocol import (
    Batching,
    Controls,
    FinishReason,
    Priority,
    Request,
    SamplingParams,
    Submission,
)
from chairlift.workers.sequence import SequenceKey
from support.engines import Rig, alone, replica_info
from support.ledgers import record, replay_bytes

VOCAB_SIZE = 40
EOS = (38, 39)
CONTEXT_LENGTH = 40

Choice = tuple[int, int]
"""Number of a request, and of its choice."""


class Journey:
    """Requests on one replica after the other."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.requests = [self.request(number) for number in range(self.draw.randint(1, 10))]
        self.told: dict[Choice, list[int]] = {
            (number, choice): []
            for number, request in enumerate(self.requests)
            for choice in range(request.n)
        }
        self.endings: dict[Choice, FinishReason] = {}
        self.moves = 0

    def request(self, number: int) -> Request:
        start = [7] * self.draw.choice([0, 0, 6, 12])
        tail = [self.draw.randrange(VOCAB_SIZE) for _ in range(self.draw.randint(1, 8))]
        sampling = SamplingParams(
            max_tokens=self.draw.randint(1, 16),
            seed=self.draw.randrange(4),
            stop_token_ids=self.draw.choice([(), (2,)]),
            ignore_eos=self.draw.random() < 0.3,
        )
        return Request(
            str(number),
            (*start, *tail),
            sampling,
            n=self.draw.choice([1, 1, 3]),
            tenant=self.draw.choice("ab"),
            priority=self.draw.choice(list(Priority)),
        )

    def go(self) -> None:
        self.ride(self.whole, hands_over=True)
        while unfinished := [choice for choice in self.told if choice not in self.endings]:
            self.moves += len(unfinished)
            self.ride(lambda: self.rest(unfinished), hands_over=self.draw.random() < 0.5)

    def whole(self) -> list[tuple[Submission, list[Choice]]]:
        """As they come from a client."""
        return [
            (Submission(10 * number, request), [(number, choice) for choice in range(request.n)])
            for number, request in enumerate(self.requests)
        ]

    def rest(self, unfinished: list[Choice]) -> list[tuple[Submission, list[Choice]]]:
        """Choice by choice, each after what it was told."""
        parts = []
        for handle, (number, choice) in enumerate(unfinished):
            request = self.requests[number]
            single = Request(
                request.id,
                request.prompt,
                request.sampling,
                tenant=request.tenant,
                priority=request.priority,
            )
            output = tuple(self.told[number, choice])
            parts.append((Submission(handle, single, choice, output), [(number, choice)]))
        return parts

    def ride(self, load, *, hands_over: bool) -> None:
        """Run a load on a new replica, to its end or until that one hands over."""
        rig = self.replica()
        ledger = record(rig)
        of: dict[SequenceKey, Choice] = {}
        for submission, choices in load():
            assert rig.intake.submit(0, submission).refusal is None
            for offset, choice in enumerate(choices):
                of[SequenceKey(0, submission.handle + offset)] = choice
            for _ in range(self.draw.choice([0, 0, 1, 3])):
                rig.engine.step()
        if hands_over:
            for _ in range(self.draw.randint(0, 15)):
                rig.engine.step()
            if self.draw.random() < 0.5:
                rig.engine.hand_over()
            else:
                rig.during_advance = lambda plan: rig.engine.hand_over()
        rig.run_until_idle()
        assert replay_bytes(ledger.content()).difference is None
        for key, choice in of.items():
            tokens, finish = rig.answer(key)
            self.told[choice].extend(tokens)
            if finish is not FinishReason.HANDED_OVER:
                self.endings[choice] = finish

    def replica(self) -> Rig:
        block_size = self.draw.choice([1, 3, 4])
        least = -(-CONTEXT_LENGTH // block_size)
        info = replica_info(
            vocab_size=VOCAB_SIZE,
            max_sequence_tokens=CONTEXT_LENGTH,
            max_waiting=64,
            block_size=block_size,
            blocks_total=self.draw.choice([least, 2 * least, 8 * least]),
        )
        controls = Controls(
            batching=self.draw.choice([Batching.CONTINUOUS, *Batching]),
            token_budget=self.draw.choice([3, 7, 64]),
            max_sequences=self.draw.randint(1, 4),
            fair=self.draw.random() < 0.7,
        )
        return Rig(controls, info=info, eos=EOS, prefix_cache=self.draw.random() < 0.8)


@given(seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_nothing_is_lost_or_told_twice_when_replicas_hand_over(seed: int) -> None:
    journey = Journey(seed)
    journey.go()
    for (number, choice), told in journey.told.items():
        request = journey.requests[number]
        expected = alone(request.prompt, request.sampling, choice, eos=EOS, vocab_size=VOCAB_SIZE)
        assert (tuple(told), journey.endings[number, choice]) == expected


def test_the_draws_do_move_sequences_in_the_midst_of_their_output() -> None:
    journeys = [Journey(seed) for seed in range(30)]
    for journey in journeys:
        journey.go()
    assert sum(journey.moves for journey in journeys) > 100
