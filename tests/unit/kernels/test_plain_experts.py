"""Who takes which expert: by the reference's rules, and whoever else is in the batch."""

from __future__ import annotations

import pytest
import torch

from chairlift.kernels.plain_experts import route
from chairlift.kernels.torch_kernels import TorchKernels
from support.mixtures import check_experts, check_ties


@pytest.mark.parametrize("rows", [1, 5, 33])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("experts", "per_token"), [(3, 1), (8, 2), (21, 5), (4, 4)])
def test_experts_equal_the_reference(rows, normalise, experts, per_token):
    check_experts(TorchKernels(), rows, experts, per_token, normalise)


def test_of_equal_experts_the_first_are_taken():
    check_ties(TorchKernels())


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize(("experts", "per_token"), [(8, 2), (60, 4), (128, 8)])
def test_a_rows_choice_and_weights_do_not_depend_on_the_batch(normalise, experts, per_token):
    random = torch.Generator().manual_seed(0)
    scores = torch.randint(-20, 20, (300, experts), generator=random) / 4
    alone = [route(row[None], per_token, normalise=normalise) for row in scores]
    weights, chosen = (torch.cat(each) for each in zip(*alone, strict=True))
    for _ in range(30):
        first, last = sorted(torch.randint(0, 301, (2,), generator=random).tolist())
        found = route(scores[first:last], per_token, normalise=normalise)
        assert torch.equal(found[0], weights[first:last])
        assert torch.equal(found[1], chosen[first:last])
