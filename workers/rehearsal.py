"""Steps without requests: for the warm-up, and to be timed.

Owns which steps these are. They write to the first blocks of a cache, whoever has them.
"""

from __future__ import annotations

from chairlift.cluster.protocol import SamplingParams
from chairlift.workers.sequence import Sequence, SequenceKey, Slice, StepPlan

__all__ = ["decoding_plan", "warm_up_plans"]

# Sequences × tokens of each: one prompt, a step of many, a step of one.
_WARM_UP = ((1, 64), (8, 1), (1, 1))


def warm_up_plans(num_blocks: int, block_size: int, longest: int) -> list[StepPlan]:
    """What the production path should have done once before the first request.

    ``longest``: tokens that a sequence can have.
    """
    longest = min(longest, num_blocks * block_size)
    return [
        StepPlan(
            tuple(
                Slice(_sequence(index, count, block_size), start=0, count=count, samples=True)
                for index in range(min(sequences, num_blocks))
            )
        )
        for sequences, length in _WARM_UP
        for count in (min(length, longest),)
    ]


def decoding_plan(sequences: int, context: int, num_blocks: int, block_size: int) -> StepPlan:
    """Sequences of this length decode, and nothing else.

    Raises:
        ValueError: the cache does not hold so many.
    """
    blocks = sequences * -(-context // block_size)
    if blocks > num_blocks:
        raise ValueError(f"{blocks} blocks are needed, there are {num_blocks}")
    decoding = [_sequence(index, context, block_size) for index in range(sequences)]
    return StepPlan(
        tuple(Slice(each, start=context - 1, count=1, samples=True) for each in decoding)
    )


def _sequence(index: int, length: int, block_size: int) -> Sequence:
    blocks = -(-length // block_size)
    return Sequence(
        key=SequenceKey(-1, index),
        request_id="warm-up",
        tenant="warm-up",
        choice=0,
        sampling=SamplingParams(max_tokens=1, top_p=0.9),
        arrival=index,
        tokens=[0] * length,
        num_prompt=length,
        blocks=list(range(index * blocks, (index + 1) * blocks)),
    )
