"""All layers in one call: the numbers of the single kernels, to the bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from chairlift.cluster.config import cache_folder
from chairlift.kernels.cpu.build import Processor, build
from chairlift.kernels.cpu.cpp_kernels import CppKernels
from chairlift.kernels.cpu.cpp_layers import CppLayers
from chairlift.kernels.cpu.library import GroupLibrary, address
from chairlift.kernels.interface import (
    Activation,
    AttentionRows,
    DecoderLayer,
    Experts,
    GatedMlp,
    Heads,
    Layers,
    Packed,
    Ranks,
)
from chairlift.kernels.plain_layers import PlainLayers
from support.attention_steps import Step, make_heads, make_history, step_rows
from support.cpp_kernels import make_kernels
from support.one_rank import OneRank
from support.quantised_blocks import random_matrix

HIDDEN, INNER, BLOCK_SIZE = 256, 512, 16
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
KINDS = {
    "float32": ["F32"] * 6,
    "int8": ["Q4_1", "Q4_1", "Q4_1", "Q8_0", "Q4_0", "Q4_0"],
    "mixed": ["Q4_K", "F32", "Q6_K", "Q5_0", "Q4_K", "Q6_K"],
}


@pytest.fixture(scope="module", params=Processor, ids=lambda kind: kind.name.lower())
def kernels(request):
    return make_kernels(request.param)


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_one_call_computes_what_the_single_kernels_do(kernels, kinds, has_bias, dtype):
    layers = [make_layer(kernels, kinds, has_bias, seed=seed) for seed in range(3)]
    check_layers(kernels, layers, [make_heads(HEADS, KV_HEADS, HEAD_DIM)] * 3, dtype)


@pytest.mark.parametrize("kinds", [KINDS["float32"], KINDS["int8"]], ids=["float32", "int8"])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_local_and_global_layers_with_all_their_norms(kernels, kinds, activation):
    layers = [
        add_norms(make_layer(kernels, kinds, True, seed=seed, activation=activation), seed)
        for seed in range(4)
    ]
    everything = make_heads(HEADS, KV_HEADS, HEAD_DIM, scale=0.2, soft_cap=5.0)
    local = make_heads(HEADS, KV_HEADS, HEAD_DIM, rotated=8, scale=0.2, window=9)
    check_layers(kernels, layers, [local, local, everything, local], torch.float16)


@pytest.mark.parametrize(
    "norms", [("query_norm", "key_norm"), ("attention_post_norm",), ("mlp_post_norm",)]
)
def test_layers_with_some_norms(kernels, norms):
    layers = [make_layer(kernels, KINDS["float32"], False, seed=seed) for seed in range(2)]
    normed = add_norms(layers[1], 1)
    layers[1] = replace(layers[1], **{name: getattr(normed, name) for name in norms})
    check_layers(kernels, layers, [make_heads(HEADS, KV_HEADS, HEAD_DIM)] * 2, torch.float32)


def test_layers_with_experts_are_computed_by_single_kernels():
    kernels = make_kernels()
    first, second = (make_layer(kernels, KINDS["float32"], False, seed=s) for s in (0, 1))
    router = kernels.pack(torch.randn(2, HIDDEN))
    mixed = replace(first, mlp=Experts(router, (first.mlp, second.mlp), 1, True))
    heads = [make_heads(HEADS, KV_HEADS, HEAD_DIM)] * 2
    layers = kernels.layers([first, mixed], heads, 1e-5, OneRank())
    assert isinstance(layers, PlainLayers)
    hidden, _ = run_layers(kernels, layers, heads, torch.float32)
    assert hidden.isfinite().all()


class Echo:
    """Two ranks with the same share."""

    size = 2
    handle: int | None = None

    def sum(self, x: torch.Tensor) -> None:
        x *= 2

    def check(self, code: int) -> None:
        raise AssertionError("nothing is summed up in C++")


def test_what_layers_add_is_summed_over_ranks():
    """Twice the outputs of attention and MLP: as one rank with twice the weights."""
    kernels = make_kernels()
    one = make_layer(kernels, KINDS["float32"], False, seed=0)
    heads = [make_heads(HEADS, KV_HEADS, HEAD_DIM)]
    layers = kernels.layers([one], heads, 1e-5, Echo())
    assert isinstance(layers, PlainLayers)
    found, _ = run_layers(kernels, layers, heads, torch.float32)
    twice = replace(
        one,
        attention_out=scaled(one.attention_out),
        mlp=replace(one.mlp, down=scaled(one.mlp.down)),
    )
    layers = kernels.layers([twice], heads, 1e-5, OneRank())
    expected, _ = run_layers(kernels, layers, heads, torch.float32)
    assert torch.equal(found, expected)


class Lost(Exception):
    """A rank is not there any more."""


class Seat:
    """One of two ranks that share memory."""

    size = 2

    def __init__(self, folder: Path, rank: int, *, in_cpp: bool) -> None:
        library = build(cache_folder())
        self.group = GroupLibrary(library, str(folder / f"group-{in_cpp}"), rank, 2, 1024)
        self.handle = self.group.handle if in_cpp else None

    def sum(self, x: torch.Tensor) -> None:
        self.check(self.group.call("sum", address(x, *x.shape), x.numel()))

    def check(self, code: int, /) -> None:
        if code:
            raise Lost(code)


def run_rank(folder: Path, rank: int, *, in_cpp: bool) -> tuple[torch.Tensor, type[Layers]]:
    """Hidden states of a rank whose weights are its own, but for the norms."""
    kernels, seat = make_kernels(threads=1), Seat(folder, rank, in_cpp=in_cpp)
    seat.check(seat.group.call("join", 60.0))
    layers = []
    for seed in range(2):
        own = make_layer(kernels, KINDS["float32"], False, seed=10 * rank + seed)
        norms = make_layer(kernels, KINDS["float32"], False, seed=seed)
        own = replace(own, attention_norm=norms.attention_norm, mlp_norm=norms.mlp_norm)
        layers.append(add_norms(own, seed))
    heads = [make_heads(HEADS, KV_HEADS, HEAD_DIM)] * 2
    prepared = kernels.layers(layers, heads, 1e-5, seat)
    hidden, _ = run_layers(kernels, prepared, heads, torch.float32)
    return hidden, type(prepared)


def test_ranks_sum_up_in_cpp_what_they_would_in_single_kernels(tmp_path):
    make_kernels()
    found = {}
    for in_cpp, expected in ((True, CppLayers), (False, PlainLayers)):
        with ThreadPoolExecutor(2) as threads:
            run = partial(run_rank, tmp_path, in_cpp=in_cpp)
            (first, kind), (second, _) = threads.map(run, range(2))
        assert kind is expected
        assert torch.equal(first, second)
        found[in_cpp] = first
    assert found[True].isfinite().all()
    assert torch.equal(found[True], found[False])


def test_layers_end_when_a_rank_is_lost(tmp_path):
    make_kernels()

    def leave() -> None:
        seat = Seat(tmp_path, 1, in_cpp=True)
        seat.check(seat.group.call("join", 60.0))
        seat.group.leave()

    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(run_rank, tmp_path, 0, in_cpp=True)
        threads.submit(leave).result()
        with pytest.raises(Lost):
            running.result()


def scaled(matrix: Packed) -> Packed:
    parts = tuple(replace(part, weight=2 * part.weight) for part in matrix.parts)
    return replace(matrix, parts=parts)


def check_layers(
    kernels: CppKernels, layers: list[DecoderLayer], heads: list[Heads], dtype: torch.dtype
) -> None:
    """The same hidden states and caches as with single kernels."""
    ranks: Ranks = OneRank()
    fast = kernels.layers(layers, heads, 1e-5, ranks)
    assert isinstance(fast, CppLayers)
    results = [
        run_layers(kernels, prepared, heads, dtype)
        for prepared in (fast, PlainLayers(kernels, layers, heads, 1e-5, ranks))
    ]
    assert results[0][0].isfinite().all()
    for one, other in zip(*([hidden, *rest] for hidden, rest in results), strict=True):
        assert torch.equal(one, other)


def run_layers(
    kernels: CppKernels, layers: Layers, heads: list[Heads], dtype: torch.dtype
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Hidden states after one step, and what it left in the caches."""
    rows = make_rows(heads[0])
    blocks = int(rows.block_tables.max()) + 1
    hidden = torch.randn(48, HIDDEN, generator=torch.Generator().manual_seed(0))
    caches = [kernels.new_cache(each, blocks, BLOCK_SIZE, dtype) for each in heads]
    layers.run(hidden, rows, caches)
    return hidden, [tensor for cache in caches for tensor in (cache.keys, cache.values)]


def make_rows(heads: Heads) -> AttentionRows:
    steps = [
        Step(make_history(heads, end, BLOCK_SIZE, seed=seed), start, end)
        for seed, (start, end) in enumerate([(0, 7), (0, 1), (0, 40)])
    ]
    return step_rows(steps, BLOCK_SIZE)


def add_norms(layer: DecoderLayer, seed: int) -> DecoderLayer:
    random = torch.Generator().manual_seed(seed)
    query, key = torch.rand(2, HEAD_DIM, generator=random)
    attention, mlp = torch.rand(2, HIDDEN, generator=random)
    return replace(
        layer,
        query_norm=query,
        key_norm=key,
        attention_post_norm=attention,
        mlp_post_norm=mlp,
    )


def make_layer(
    kernels: CppKernels,
    kinds: list[str],
    has_bias: bool,
    seed: int,
    activation: Activation = "silu",
) -> DecoderLayer:
    random = torch.Generator().manual_seed(seed)

    def pack(*shapes: tuple[str, int, int]) -> Packed:
        matrices = [
            0.05 * torch.randn(outputs, inputs, generator=random)
            if kind == "F32"
            else random_matrix(kind, outputs, inputs, seed)
            for kind, outputs, inputs in shapes
        ]
        outputs = sum(outputs for _, outputs, _ in shapes)
        return kernels.pack(*matrices, bias=torch.randn(outputs) if has_bias else None)

    width, stored = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    qkv = zip(kinds[:3], (width, stored, stored), strict=True)
    return DecoderLayer(
        attention_norm=torch.rand(HIDDEN, generator=random),
        qkv=pack(*((kind, outputs, HIDDEN) for kind, outputs in qkv)),
        attention_out=pack((kinds[3] if kinds[3][-1] != "K" else "F32", HIDDEN, width)),
        mlp_norm=torch.rand(HIDDEN, generator=random),
        mlp=GatedMlp(
            gate_up=pack((kinds[4], INNER, HIDDEN), (kinds[5], INNER, HIDDEN)),
            down=pack((kinds[5], HIDDEN, INNER)),
            activation=activation,
        ),
    )
