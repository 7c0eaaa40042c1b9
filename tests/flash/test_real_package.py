"""The adapter and the real ``vllm_flash_attn``: its signature anywhere, its results on a GPU.

`make test-flash` installs it with the torch that it is built for.
"""

from __future__ import annotations

import inspect
import random

import pytest
import torch

from chairlift.kernels.flash import (
    Flash,
    Gpu,
    Needs,
    NoFlash,
    Scoring,
    find_flash,
    look_for_gpu,
)
from support import flash_reference

vllm_flash_attn = pytest.importorskip("vllm_flash_attn", reason="see make test-flash")

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")

SCORINGS = (
    Scoring(0.125),
    Scoring(0.125, window=100),
    Scoring(0.125, soft_cap=30.0),
    Scoring(0.125, window=100, soft_cap=30.0),
)


@pytest.mark.parametrize("exact", [False, True])
def test_the_real_function_takes_the_adapters_calls(exact: bool) -> None:
    """All that is left to complain of is that tensors on a CPU are no use to it."""
    needs = Needs(8, 2, 64, torch.bfloat16, 16, SCORINGS, exact)
    nothing = find_flash(needs, Gpu(torch.device("cpu"), (9, 0)))
    assert isinstance(nothing, NoFlash)
    reasons = {each.package: each.reason for each in nothing.refusals}
    assert reasons["vllm-flash-attn"].startswith("a trial failed: ")


def test_the_stand_in_has_the_parameters_of_the_real_function() -> None:
    real = inspect.signature(vllm_flash_attn.flash_attn_varlen_func).parameters
    stand_in = inspect.signature(flash_reference.vllm_flash_attn_varlen).parameters
    assert [(each.name, each.kind, each.default) for each in stand_in.values()] == [
        (each.name, each.kind, each.default) for each in real.values()
    ]


@on_gpu
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("scoring", SCORINGS)
@pytest.mark.parametrize("seed", range(3))
def test_the_gpu_computes_what_the_reference_does(seed: int, scoring: Scoring, exact: bool) -> None:
    draw = random.Random(seed)
    kv_heads = draw.choice([1, 2, 4])
    needs = Needs(
        kv_heads * draw.choice([1, 4, 7]),
        kv_heads,
        draw.choice([64, 96, 128]),
        draw.choice([torch.float16, torch.bfloat16]),
        draw.choice([16, 32]),
        (scoring,),
        exact,
    )
    flash = find_flash(needs, look_for_gpu())
    assert isinstance(flash, Flash), flash
    steps = [(context := draw.randint(1, 300), draw.choice([1, context])) for _ in range(4)]
    actual, expected = flash_reference.attend(flash, needs, steps, seed, "cuda")
    torch.testing.assert_close(actual, expected, rtol=0.02, atol=0.02)
