from __future__ import annotations

from functools import partial

import pytest
import torch

from chairlift.cluster.grammar import json_grammar
from chairlift.cluster.model_files import read_spec
from chairlift.workers import device_runner, model_loading
from chairlift.workers.decoder_weights import pack_weights
from chairlift.workers.device_queue import CpuQueue
from chairlift.workers.device_runner import DeviceCache, DeviceRunner
from chairlift.workers.grammar_masks import GrammarMasks, NoMasks
from chairlift.workers.model_loading import Compute
from chairlift.workers.model_runner import ModelRunner
from chairlift.workers.sequence import Slice, StepPlan, StepResult
from chairlift.workers.shards import share_of
from chairlift.workers.weights import load_weights
from support import tiny_llama
from support.cpp_kernels import make_kernels
from support.decoding import Decoder, make_sequence
from support.device_runners import make_device_runner
from support.grammars import byte_grammars
from support.llama_models import random_weights, tiny_spec
from support.shared_ranks import by_ranks
from support.tiny_llama import write_folder

SPEC = tiny_spec()
BLOCK_SIZE, BLOCKS = 4, 96

make_runner = partial(make_device_runner, SPEC, num_blocks=BLOCKS, block_size=BLOCK_SIZE)


@pytest.fixture(scope="module")
def plain():
    """What everything is compared with."""
    kernels = make_kernels()
    return ModelRunner(
        SPEC, random_weights(SPEC), num_blocks=BLOCKS, block_size=BLOCK_SIZE, kernels=kernels
    )


@pytest.fixture(scope="module", params=[0, 3, 16], ids="graphs of {}".format)
def runner(request):
    return make_runner(graph_sequences=request.param)


class Record(CpuQueue):
    """What was queued, and where the host waited."""

    def __init__(self):
        self.events = []

    def send(self, arrays):
        self.events.append("send")
        return super().send(arrays)

    def fetch(self, values):
        wait = super().fetch(values)

        def recorded():
            self.events.append("wait")
            return wait()

        return recorded


@pytest.fixture
def record(monkeypatch):
    record = Record()
    monkeypatch.setattr(device_runner, "queue_for", lambda device: record)
    return record


def prompt(length, seed=0):
    random = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(SPEC.vocab_size, (length,), generator=random).tolist()


ASKED = [
    {},
    {"temperature": 1.0, "top_p": 0.9, "seed": 3},
    {"temperature": 0.7, "top_k": 5, "min_p": 0.01, "seed": 2**63 + 1},
    {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "seed": 5},
    {"logit_bias": ((4, 9.0),), "logprobs": 2},
    {"logprobs": 3, "prompt_logprobs": 1},
    {"min_tokens": 3, "stop_token_ids": tuple(range(60)), "temperature": 1.0},
    {"allowed_token_ids": (1, 2, 3), "temperature": 1.0, "logprobs": 0},
]


class Results(Decoder):
    """Keeps what its runner brings."""

    def __init__(self, runner):
        self.results = []
        super().__init__(self, range(BLOCKS), BLOCK_SIZE)
        self._computes = runner

    def advance(self, plan):
        result = self._computes.advance(plan)
        self.results.append((list(result.tokens), dict(result.logprobs), result.prompt_logprobs))
        return result


def decode(runner, asked, *, budget=512, max_tokens=9):
    decoder = Results(runner)
    sequences = [
        make_sequence(index, prompt(2 + 5 * index, index), max_tokens=max_tokens, **each)
        for index, each in enumerate(asked)
    ]
    decoder.run(sequences, budget=budget)
    return decoder.results


@pytest.mark.parametrize("asked", [[each] for each in ASKED] + [ASKED[:3] * 2, ASKED])
@pytest.mark.parametrize("budget", [7, 512])
def test_every_step_brings_what_it_does_without_a_device(runner, plain, asked, budget):
    assert decode(runner, asked, budget=budget) == decode(plain, asked, budget=budget)


def test_sequences_with_a_grammar_follow_it_as_without_a_device_and_as_alone(runner, plain):
    """In the company of others, each with a place of its own, whoever computes."""
    grammars = byte_grammars(SPEC.vocab_size, end=0)
    endless = {
        "grammar": json_grammar({"type": "array", "minItems": 99, "items": {"enum": [1, "A"]}})
    }
    asked = [endless, {}, endless | {"temperature": 1.0, "seed": 5, "logprobs": 2}, ASKED[1]]
    plain.masks, runner.masks = GrammarMasks(grammars), GrammarMasks(grammars)
    together = decode(plain, asked)
    assert decode(runner, asked) == together
    assert decode(runner, asked, budget=7) == decode(plain, asked, budget=7)
    first = bytes(tokens[0] for tokens, _, _ in together)
    assert first == bytes(tokens[0] for tokens, _, _ in decode(plain, [endless]))
    assert grammars.follow(endless["grammar"]).mask() and first.startswith(b"[")
    plain.masks, runner.masks = NoMasks(), NoMasks()


@pytest.mark.parametrize("length", [1, 4, 9])
def test_logits_are_the_same_bits(runner, plain, length):
    pieces = []
    for index in range(5):
        sequence = make_sequence(index, prompt(length, index))
        sequence.blocks = [7 * index + 3, 7 * index, 7 * index + 5]
        pieces.append(Slice(sequence, 0, length, samples=True))
    whole = StepPlan(tuple(pieces))
    assert torch.equal(runner.logits(whole), plain.logits(whole))
    last = StepPlan(tuple(Slice(p.sequence, length - 1, 1, samples=True) for p in pieces))
    assert torch.equal(runner.logits(last), plain.logits(last))


def test_a_preempted_sequence_goes_on_as_if_nothing_had_happened(runner, plain):
    def tokens(runner):
        first = make_sequence(0, prompt(6), temperature=1.0, max_tokens=12)
        second = make_sequence(1, prompt(9, 1), max_tokens=12)
        decoder = Decoder(runner, range(BLOCKS), BLOCK_SIZE)
        decoder.step([(first, 6)])
        for _ in range(4):
            decoder.step([(first, 1)])
        decoder.preempt(first)
        decoder.step([(second, 9)])  # takes the blocks that were given up
        decoder.step([(second, 1), (first, 5)])
        decoder.run([second, first])
        return first.tokens, second.tokens

    assert tokens(runner) == tokens(plain)


def test_the_next_step_is_queued_before_the_host_waits_for_this_one(record):
    runner = make_runner(graph_sequences=4)
    sequence = make_sequence(0, prompt(3), max_tokens=5)
    decoder = Decoder(runner, range(BLOCKS), BLOCK_SIZE)
    decoder.step([(sequence, 3)])
    record.events.clear()
    decoder.step([(sequence, 1)])
    assert record.events == ["send", "send", "wait"]
    decoder.step([(sequence, 1)])
    assert record.events == ["send", "send", "wait", "send", "wait"]


def test_who_comes_meanwhile_is_computed_beside_what_is_under_way(record, plain):
    def tokens(runner):
        first, second, third = (make_sequence(i, prompt(3 + i, i), max_tokens=9) for i in range(3))
        decoder = Decoder(runner, range(BLOCKS), BLOCK_SIZE)
        decoder.step([(first, 3), (second, 4)])
        decoder.step([(first, 1), (second, 1)])
        record.events.clear()
        decoder.step([(third, 5), (second, 1), (first, 1)])
        events = list(record.events)
        decoder.step([(third, 1), (second, 1), (first, 1)])
        return events, [each.tokens for each in (first, second, third)]

    events, found = tokens(make_runner(graph_sequences=4))
    assert events == ["send", "wait", "wait"], "the newcomer, and nothing ahead"
    assert found == tokens(plain)[1]


def test_log_probabilities_of_a_newcomer_stand_at_its_place(plain):
    def results(runner):
        decoder = Results(runner)
        first = make_sequence(0, prompt(3), max_tokens=9)
        second = make_sequence(1, prompt(4, 1), max_tokens=9, logprobs=2, prompt_logprobs=1)
        decoder.step([(first, 3)])
        decoder.step([(first, 1)])
        decoder.step([(first, 1), (second, 4)])
        return decoder.results[-1]

    found = results(make_runner())
    assert found == results(plain)
    assert (list(found[1]), list(found[2])) == ([1], [1])


def test_who_has_ended_is_left_aside(record, plain):
    def tokens(runner):
        sequences = [make_sequence(i, prompt(3 + i, i), max_tokens=9) for i in range(3)]
        decoder = Decoder(runner, range(BLOCKS), BLOCK_SIZE)
        decoder.step((each, each.num_pending) for each in sequences)
        decoder.step((each, 1) for each in sequences)
        ended = sequences.pop(1)
        decoder._free.extend(ended.blocks)
        record.events.clear()
        decoder.run(sequences)
        return [each.tokens for each in sequences]

    found = tokens(make_runner(graph_sequences=4))
    assert record.events.count("send") == 6, "seven steps, the first of them under way"
    assert found == tokens(plain)


def test_what_was_queued_ahead_is_forgotten_when_a_step_fails(record, plain):
    runner = make_runner(graph_sequences=4)
    sequence = make_sequence(0, prompt(3), max_tokens=9)
    decoder = Decoder(runner, range(BLOCKS), BLOCK_SIZE)
    decoder.step([(sequence, 3)])
    decoder.step([(sequence, 1)])
    broken = make_sequence(1, prompt(3), max_tokens=9)
    with pytest.raises(ValueError, match="0 blocks"):
        runner.advance(StepPlan((Slice(broken, 0, 3, samples=True),)))
    record.events.clear()
    decoder.run([sequence])
    assert record.events[:3] == ["send", "send", "wait"]
    twin = make_sequence(0, prompt(3), max_tokens=9)
    Decoder(plain, range(BLOCKS), BLOCK_SIZE).run([twin])
    assert sequence.tokens == twin.tokens


def test_ranks_compute_ahead_alike(tmp_path):
    spec = read_spec(write_folder(tmp_path, tiny_llama.random_weights()))

    def tokens(runner):
        sequences = [
            make_sequence(i, range(3, 9 + i), temperature=float(i), seed=i) for i in range(3)
        ]
        Decoder(runner, range(BLOCKS), BLOCK_SIZE).run(sequences, budget=11)
        return [each.tokens for each in sequences]

    def on_device(group):
        kernels, share = make_kernels(threads=1), share_of(spec, group.rank, group.size)
        weights = load_weights(spec, lambda done: None, share=share)
        packed = pack_weights(spec, weights, kernels, rank=group.rank)
        runner = DeviceRunner(
            spec, packed, DeviceCache(BLOCKS, BLOCK_SIZE, torch.float32, 4), kernels, group
        )
        runner.warm_up(lambda done: None)
        return tokens(runner)

    def on_cpu(group):
        sizes = {"num_blocks": BLOCKS, "block_size": BLOCK_SIZE, "group": group}
        return tokens(model_loading.make_runner(spec, Compute("cpp"), **sizes))

    make_kernels()  # skips where they cannot be had
    first, second = by_ranks(2, on_device)
    assert first == second
    assert first == by_ranks(2, on_cpu)[0]


def test_an_empty_plan_has_an_empty_result(runner):
    assert runner.advance(StepPlan(())) == StepResult(())


@pytest.mark.parametrize(("num_blocks", "block_size"), [(1, 1), (2, 16), (40, 4)])
def test_warm_up_fits_any_cache_and_tells_how_far_it_is(num_blocks, block_size):
    seen = []
    make_device_runner(
        SPEC,
        num_blocks=num_blocks,
        block_size=block_size,
        graph_sequences=40,
        warm_up=seen.append,
    )
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_a_rehearsal_can_be_repeated_and_must_fit_the_cache(plain):
    runner = make_runner(graph_sequences=2)
    step = runner.rehearse(2, BLOCK_SIZE + 1)
    step()
    step()
    assert decode(runner, [{}]) == decode(plain, [{}])
    with pytest.raises(ValueError, match=f"{BLOCKS + 1} blocks are needed, there are {BLOCKS}"):
        runner.rehearse(BLOCKS + 1, 1)
