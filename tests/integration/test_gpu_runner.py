"""A model on a GPU: graphs, computing ahead and company change no bit. In the interpreter, too."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec

import pytest
import torch

from chairlift.cluster.config import EngineConfig, ServiceConfig
from chairlift.cluster.model_files import read_spec
from chairlift.workers.model_loading import Compute, load_runner, make_device_runner, make_runner
from chairlift.workers.sequence import Slice, StepPlan
from chairlift.workers.tensor_parallel import Alone, Rendezvous, join, new_address
from support import tiny_llama
from support.decoding import Decoder, make_sequence
from support.llama_models import random_weights, tiny_spec
from support.tiny_llama import write_folder

pytestmark = pytest.mark.skipif(not find_spec("triton"), reason="triton is not installed")

BLOCK_SIZE, BLOCKS = 16, 40
HAS_GPU = torch.cuda.is_available()


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("interpreted", marks=pytest.mark.slow),
        pytest.param("float32", marks=pytest.mark.gpu),
        pytest.param("bfloat16", marks=pytest.mark.gpu),
    ],
)
def engine(request):
    if (request.param == "interpreted") == HAS_GPU:
        pytest.skip("kernels are compiled where there is a GPU, and only there")
    dtype = "float32" if request.param == "interpreted" else request.param
    return {"kernels": "triton", "dtype": dtype, "block_size": BLOCK_SIZE}


@pytest.fixture(scope="module")
def spec(engine):
    if not HAS_GPU:
        return tiny_spec(num_layers=1)
    return tiny_spec(
        num_layers=4, vocab_size=3000, hidden_size=256, intermediate_size=512, head_dim=64
    )


@pytest.fixture(scope="module")
def runners(engine, spec):
    """Without graphs, and with them."""
    found = []
    for graphs in (0, 4):
        config = EngineConfig(graph_sequences=graphs, **engine)
        runner = make_device_runner(spec, config, random_weights(spec), num_blocks=BLOCKS)
        runner.warm_up(lambda share: None)
        found.append(runner)
    return found


def sequences(spec, count=3):
    return [
        make_sequence(
            index,
            [(7 * index + 3 * place) % spec.vocab_size for place in range(2 + 13 * index)],
            max_tokens=4 + index,
            temperature=float(index % 2),
            seed=index,
        )
        for index in range(count)
    ]


def decode(runner, running, budget=512):
    Decoder(runner, range(BLOCKS), BLOCK_SIZE).run(running, budget=budget)
    return [each.tokens for each in running]


def test_graphs_change_nothing(runners, spec):
    plain, with_graphs = runners
    assert decode(with_graphs, sequences(spec)) == decode(plain, sequences(spec))


def test_company_and_chunks_change_nothing(runners, spec):
    _, runner = runners
    together = decode(runner, sequences(spec), budget=11)
    assert together == [decode(runner, [each])[0] for each in sequences(spec)]


def test_graphs_give_the_same_logits(runners, spec):
    slices = []
    for index, sequence in enumerate(sequences(spec)):
        sequence.blocks = [3 * index + 1, 3 * index]
        slices.append(Slice(sequence, 0, sequence.num_tokens, samples=True))
    last = tuple(
        Slice(each.sequence, each.count - 1, 1, samples=True) for each in slices if each.count > 1
    )
    found = [
        (each.logits(StepPlan(tuple(slices))), each.logits(StepPlan(last))) for each in runners
    ]
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert torch.equal(found[0][0], found[0][1]), "a prompt's last row is that of a decoding one"


@pytest.mark.skipif(not HAS_GPU, reason="there is no GPU to wait for")
def test_decoding_waits_for_nothing_but_the_tokens(runners, spec):
    """Torch raises at every other call that waits."""
    _, runner = runners
    running = sequences(spec, 2)
    decoder = Decoder(runner, range(BLOCKS), BLOCK_SIZE)
    decoder.step((each, each.num_pending) for each in running)
    decoder.step((each, 1) for each in running)
    torch.cuda.set_sync_debug_mode("error")
    try:
        decoder.step((each, 1) for each in running)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_service_loads_the_model_and_finds_room_for_its_cache(engine, tmp_path):
    """The warm-up says how far it is, and the blocks are those that the memory holds."""
    spec = read_spec(write_folder(tmp_path, tiny_llama.random_weights()))
    config = ServiceConfig(engine=EngineConfig(**engine, kv_memory="256KiB", graph_sequences=1))
    told = []
    runner, num_blocks = load_runner(config, spec, lambda stage: told.append, Alone())
    size = torch.float32 if engine["dtype"] == "float32" else torch.bfloat16
    block = BLOCK_SIZE * spec.kv_bytes_per_token(size.itemsize)
    assert num_blocks == 256 * 1024 // block
    assert told[-1] == 1.0
    (sequence,) = sequences(spec, 1)
    assert decode(runner, [sequence])[0][:2] == [0, 3]
    assert sequence.num_output == 4


def tokens_of(spec, rank=0, size=1, address=""):
    """What a rank decodes, with its share of the weights, on a GPU of its own."""
    group = join(Rendezvous(rank, size, "nccl", address, 120.0))
    try:
        runner = make_runner(
            spec, Compute("triton"), num_blocks=BLOCKS, block_size=BLOCK_SIZE, group=group
        )
        runner.warm_up(lambda share: None)
        return decode(runner, [each for each in sequences(spec) if not each.sampling.temperature])
    finally:
        group.close()


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")
def test_two_gpus_give_the_tokens_of_one(tmp_path):
    spec = read_spec(write_folder(tmp_path, tiny_llama.random_weights()))
    address = new_address("nccl")
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as ranks:
        both = [ranks.submit(tokens_of, spec, rank, 2, address) for rank in range(2)]
        found = [each.result(timeout=150) for each in both]
    assert found == [tokens_of(spec)] * 2
