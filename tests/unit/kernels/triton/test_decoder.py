"""Layers with all optional parts, against the kernels in plain torch."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from chairlift.kernels.interface import DecoderLayer, Experts, GatedMlp, Kernels
from chairlift.kernels.torch_kernels import TorchKernels
from chairlift.kernels.triton.triton_kernels import TritonKernels
from support.attention_steps import Step, make_heads, make_history, step_rows
from support.one_rank import OneRank

HIDDEN, INNER, BLOCK_SIZE = 24, 40, 16
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16


def make_layer(kernels: Kernels, seed: int, *, mixes: bool) -> DecoderLayer:
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return 0.3 * torch.randn(shape, generator=generator)

    def norm(width: int) -> torch.Tensor:
        return (1 + numbers(width)).to(kernels.device, kernels.dtype)

    def mlp() -> GatedMlp:
        gate_up, down = numbers(2 * INNER, HIDDEN), numbers(HIDDEN, INNER)
        return GatedMlp(kernels.pack(gate_up), kernels.pack(down), "gelu_tanh")

    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    return DecoderLayer(
        attention_norm=norm(HIDDEN),
        qkv=kernels.pack(numbers(width, HIDDEN), bias=numbers(width)),
        attention_out=kernels.pack(numbers(HIDDEN, HEADS * HEAD_DIM)),
        mlp_norm=norm(HIDDEN),
        mlp=Experts(kernels.pack(numbers(3, HIDDEN)), (mlp(), mlp(), mlp()), 2, True)
        if mixes
        else mlp(),
        query_norm=norm(HEAD_DIM),
        key_norm=norm(HEAD_DIM),
        attention_post_norm=norm(HIDDEN) if mixes else None,
        mlp_post_norm=norm(HIDDEN) if mixes else None,
    )


@pytest.mark.parametrize("exact", [False, True])
def test_computes_what_plain_torch_does(device, exact):
    kinds = [make_heads(HEADS, KV_HEADS, HEAD_DIM, window=5, soft_cap=4.0)]
    kinds.append(make_heads(HEADS, KV_HEADS, HEAD_DIM, rotated=8, scale=0.2))
    before = torch.randn(12, HIDDEN, generator=torch.Generator().manual_seed(0))
    results = []
    for kernels in (
        TorchKernels(device, torch.float32),
        TritonKernels(device, torch.float32, exact=exact),
    ):
        heads = [
            dataclasses.replace(kind, cos=kind.cos.to(device), sin=kind.sin.to(device))
            for kind in kinds
        ]
        layers = [make_layer(kernels, seed, mixes=seed == 1) for seed in range(2)]
        caches = [kernels.new_cache(kind, 128, BLOCK_SIZE, torch.float32) for kind in heads]
        decoder = kernels.layers(layers, heads, 1e-6, OneRank())
        for steps in ([(0, 9), (0, 3)], [(9, 10), (3, 5)]):
            hidden = before[: sum(end - start for start, end in steps)].clone().to(device)
            rows = step_rows(
                [
                    Step(make_history(heads[0], end, BLOCK_SIZE, seed=seed), start, end)
                    for seed, (start, end) in enumerate(steps)
                ],
                BLOCK_SIZE,
            )
            names = ("positions", "slots", "block_tables", "context_lens", "query_lens")
            moved = {name: getattr(rows, name).to(device) for name in names}
            decoder.run(hidden, dataclasses.replace(rows, **moved), caches)
            results.append(hidden.clone())
    assert results[0].isfinite().all()
    torch.testing.assert_close(results[2], results[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(results[3], results[1], rtol=1e-4, atol=1e-4)


def test_looks_up_rows_of_a_table(device):
    kernels = TritonKernels(device, torch.float16, exact=True)
    table = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    out = torch.empty(3, 5, dtype=torch.float16, device=device)
    kernels.embed(torch.tensor([6, 0, 6], device=device), kernels.pack(table), out=out)
    assert torch.equal(out.cpu(), table[[6, 0, 6]].half())
