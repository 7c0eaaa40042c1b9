"""All layers in one call: the numbers of the single kernels, to the bit."""

from __future__ import annotations

import pytest
import torch

from chairlift.kernels.cpu.build import Processor
from chairlift.kernels.cpu.cpp_kernels import CppKernels
from chairlift.kernels.interface import DecoderLayer, Packed
from chairlift.kernels.plain_layers import PlainLayers
from support.attention_steps import Step, make_heads, make_history, step_rows
from support.cpp_kernels import make_kernels
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
    heads = make_heads(HEADS, KV_HEADS, HEAD_DIM)
    layers = [make_layer(kernels, kinds, has_bias, seed=seed) for seed in range(3)]
    steps = [
        Step(make_history(heads, end, BLOCK_SIZE, seed=seed), start, end)
        for seed, (start, end) in enumerate([(0, 7), (0, 1), (0, 40)])
    ]
    rows = step_rows(steps, BLOCK_SIZE)
    blocks = int(rows.block_tables.max()) + 1
    before = torch.randn(48, HIDDEN, generator=torch.Generator().manual_seed(0))
    results = []
    for prepared in (
        kernels.layers(layers, heads, 1e-5),
        PlainLayers(kernels, layers, heads, 1e-5),
    ):
        hidden = before.clone()
        caches = [kernels.new_cache(heads, blocks, BLOCK_SIZE, dtype) for _ in layers]
        prepared.run(hidden, rows, caches)
        results.append([hidden, *(tensor for c in caches for tensor in (c.keys, c.values))])
    assert results[0][0].isfinite().all()
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def make_layer(kernels: CppKernels, kinds: list[str], has_bias: bool, seed: int) -> DecoderLayer:
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
        gate_up=pack((kinds[4], INNER, HIDDEN), (kinds[5], INNER, HIDDEN)),
        down=pack((kinds[5], HIDDEN, INNER)),
    )
