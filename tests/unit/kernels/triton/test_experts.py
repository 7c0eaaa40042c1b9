from __future__ import annotations

import pytest
import torch

from chairlift.kernels.interface import Experts
from chairlift.kernels.triton.triton_kernels import TritonKernels
from support.mixtures import HIDDEN, check_experts, check_ties, make_experts


@pytest.fixture
def kernels(device):
    if device.type != "cpu":
        pytest.skip("what the mixtures are compared with computes on the CPU")
    return TritonKernels(device, torch.float32, exact=True)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(
    ("rows", "count", "per_token"), [(1, 5, 2), (9, 5, 2), (20, 3, 1), (3, 4, 4)]
)
def test_equals_the_reference(kernels, rows, count, per_token, normalise):
    check_experts(kernels, rows, count, per_token, normalise)


def test_of_equally_likely_experts_the_first_are_taken(kernels):
    check_ties(kernels)


def test_who_takes_the_same_experts_changes_nothing(exact_dtype, device):
    kernels = TritonKernels(device, exact_dtype, exact=True)
    mixture = make_experts(kernels, 5, 2, normalise=True)
    x = torch.randn(24, HIDDEN, generator=torch.Generator().manual_seed(0)).to(device, exact_dtype)
    together = torch.empty_like(x)
    kernels.experts(x, mixture, out=together)
    for first, last in ((0, 1), (23, 24), (3, 20)):
        out = torch.empty_like(x[first:last])
        kernels.experts(x[first:last].contiguous(), mixture, out=out)
        assert torch.equal(out, together[first:last])


def test_an_expert_that_nobody_takes_and_one_that_all_take(kernels):
    mixture = make_experts(kernels, 5, 1, normalise=False)
    router = torch.zeros(5, HIDDEN)
    router[3] = 1.0
    one_for_all = Experts(kernels.pack(router), mixture.experts, 1, True)
    x = torch.rand(20, HIDDEN, generator=torch.Generator().manual_seed(0))
    out, gate_up = torch.empty_like(x), torch.empty(20, mixture.experts[3].gate_up.outputs)
    inner, expected = torch.empty(20, mixture.experts[3].down.inputs), torch.empty_like(x)
    kernels.experts(x, one_for_all, out=out)
    kernels.linear(x, mixture.experts[3].gate_up, out=gate_up)
    kernels.gated(gate_up, "gelu_tanh", out=inner)
    kernels.linear(inner, mixture.experts[3].down, out=expected)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def test_a_row_of_no_numbers_harms_no_other(kernels):
    mixture = make_experts(kernels, 5, 2, normalise=True)
    x = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(0))
    expected, found = torch.empty_like(x), torch.empty_like(x)
    kernels.experts(x, mixture, out=expected)
    x[1] = torch.nan
    kernels.experts(x, mixture, out=found)
    assert torch.equal(found[::2], expected[::2]) and found[1].isnan().all()
