"""Any schedule, any blocks, any preemptions: the same tokens."""

from __future__ import annotations

from functools import cache

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.workers.model_runner import ModelRunner
from support.decoding import Decoder, make_sequence
from support.llama_models import random_weights, tiny_spec

SPEC = tiny_spec(num_layers=2)
BLOCK_SIZE, BLOCKS = 3, 64
PROMPTS = [
    torch.randint(SPEC.vocab_size, (length,), generator=torch.Generator().manual_seed(length))
    for length in (1, 2, 6, 11)
]


@cache
def the_runner():
    return ModelRunner(SPEC, random_weights(SPEC), num_blocks=BLOCKS, block_size=BLOCK_SIZE)


def sequences():
    return [
        make_sequence(i, prompt.tolist(), max_tokens=5, temperature=float(i % 2), seed=i)
        for i, prompt in enumerate(PROMPTS)
    ]


@cache
def expected():
    alone = sequences()
    for sequence in alone:
        Decoder(the_runner(), range(BLOCKS), BLOCK_SIZE).run([sequence])
    return [sequence.tokens for sequence in alone]


@settings(max_examples=30, deadline=None)
@given(
    blocks=st.permutations(range(BLOCKS)),
    steps=st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 6)), min_size=1, max_size=4),
        max_size=12,
    ),
)
def test_the_schedule_changes_nothing(blocks, steps):
    """Each step takes some pending tokens of some sequences; -1 preempts."""
    decoder, running = Decoder(the_runner(), blocks, BLOCK_SIZE), sequences()
    for step in steps:
        counts = {}
        for index, count in step:
            sequence = running[index]
            if count < 0:
                decoder.preempt(sequence)
                counts.pop(index, None)
            elif count and not decoder.finished(sequence):
                counts[index] = (sequence, min(count, sequence.num_pending))
        if counts:
            decoder.step(counts.values())
    decoder.run(running, budget=7)
    assert [sequence.tokens for sequence in running] == expected()
