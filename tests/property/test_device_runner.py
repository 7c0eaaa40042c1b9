"""Computing ahead and filling up graphs change nothing of what an engine does, whatever comes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from chairlift.cluster.protocol import Controls
from chairlift.workers.model_runner import ModelRunner
from support.cpp_kernels import make_kernels
from support.device_runners import make_device_runner
from support.engines import Rig, replica_info
from support.llama_models import random_weights, tiny_spec
from support.ranks import timeless

# A tenth of all tokens ends a sequence, so that much of what is computed ahead is left aside.
EOS = tuple(range(10))
SPEC = tiny_spec(num_layers=1, eos_token_ids=EOS)
BLOCK_SIZE, BLOCKS, LONGEST = 2, 30, 28


@cache
def runners():
    """Without a device, and with: without graphs, and with them."""
    sizes = {"num_blocks": BLOCKS, "block_size": BLOCK_SIZE}
    plain = ModelRunner(SPEC, random_weights(SPEC), kernels=make_kernels(threads=1), **sizes)
    kernels = make_kernels(threads=1)
    return plain, *(
        make_device_runner(SPEC, kernels=kernels, graph_sequences=graphs, **sizes)
        for graphs in (0, 8)
    )


@dataclass(frozen=True)
class Arrival:
    """At which step, asking for what, and after how many steps it is cancelled, if at all."""

    at: int
    prompt: tuple[int, ...]
    sampling: dict[str, object]
    stays: int | None


starts = st.integers(1, 6).map(lambda length: (20, 21, 22, 20, 21, 22)[:length])
tails = st.lists(st.integers(16, 95), min_size=1, max_size=6).map(tuple)
simple = st.fixed_dictionaries(
    {
        "max_tokens": st.integers(3, 15),
        "temperature": st.sampled_from([1.0, 1.0, 0.0]),
        "seed": st.integers(0, 99),
        "ignore_eos": st.sampled_from([False, True]),
    }
)
special = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 5)},
    optional={
        "logprobs": st.just(1),
        "prompt_logprobs": st.just(0),
        "min_tokens": st.just(2),
        "presence_penalty": st.just(0.5),
    },
)
arrivals = st.builds(
    Arrival,
    at=st.sampled_from([0, 0, 0, *range(1, 20)]),
    prompt=tails | st.builds(lambda start, tail: start + tail, starts, tails),
    sampling=st.one_of(simple, simple, simple, simple, simple, special),
    stays=st.none() | st.none() | st.integers(0, 8),
)
controls = st.builds(
    Controls, version=st.just(0), token_budget=st.integers(6, 40), max_sequences=st.integers(3, 9)
)


def run(runner, controls, script, *, prefix_cache):
    """All that the engine told its sink, step by step."""
    info = replica_info(
        vocab_size=SPEC.vocab_size,
        max_sequence_tokens=LONGEST,
        max_sequences=9,
        max_waiting=40,
        block_size=BLOCK_SIZE,
        blocks_total=BLOCKS,
    )
    rig = Rig(controls, info=info, eos=EOS, runner=runner, prefix_cache=prefix_cache)
    for step in range(1000):
        for handle, arrival in enumerate(script):
            if arrival.at == step:
                rig.submit(handle, arrival.prompt, **arrival.sampling)
            if arrival.stays is not None and arrival.at + arrival.stays == step:
                rig.intake.cancel(0, [handle])
        busy = rig.engine.step()
        rig.scheduler.check_integrity()
        if not busy and step > 30:
            return [timeless(output) for output in rig.outputs]
    raise AssertionError("still busy")


@settings(max_examples=25, deadline=None)
@given(controls, st.lists(arrivals, min_size=6, max_size=12), st.booleans())
def test_an_engine_does_the_same_in_every_step(controls, script, prefix_cache):
    plain, *devices = (
        run(runner, controls, script, prefix_cache=prefix_cache) for runner in runners()
    )
    for outputs in devices:
        assert outputs == plain
