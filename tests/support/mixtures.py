"""Mixtures of random experts, and what they should make of random rows."""

from __future__ import annotations

import torch
from torch import Tensor

from chairlift.kernels import reference
from chairlift.kernels.interface import Experts, GatedMlp, Kernels

HIDDEN, INNER = 33, 20


def random_experts(count: int) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Weights of the router, and of each expert (gate then up, down)."""
    random = torch.Generator().manual_seed(count)
    router = torch.randn(count, HIDDEN, generator=random)
    gate_up = torch.randn(count, 2 * INNER, HIDDEN, generator=random) / HIDDEN**0.5
    down = torch.randn(count, HIDDEN, INNER, generator=random) / INNER**0.5
    return router, list(zip(gate_up, down, strict=True))


def make_experts(kernels: Kernels, count: int, per_token: int, *, normalise: bool) -> Experts:
    router, mlps = random_experts(count)
    experts = tuple(
        GatedMlp(kernels.pack(gate_up), kernels.pack(down), "gelu_tanh") for gate_up, down in mlps
    )
    return Experts(kernels.pack(router), experts, per_token, normalise)


def check_experts(kernels: Kernels, rows: int, count: int, per_token: int, normalise: bool) -> None:
    """Against the reference in float64."""
    router, mlps = random_experts(count)
    x = torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(rows))
    out = torch.full_like(x, torch.nan)
    kernels.experts(x, make_experts(kernels, count, per_token, normalise=normalise), out=out)
    expected = reference.experts(
        x.double(),
        router.double(),
        [(gate_up.double(), down.double()) for gate_up, down in mlps],
        per_token=per_token,
        normalise=normalise,
        activation="gelu_tanh",
    )
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)


def check_ties(kernels: Kernels) -> None:
    """Experts with the same scores: whose outputs the first of them have."""
    mixture = make_experts(kernels, 5, 2, normalise=True)
    same = Experts(kernels.pack(torch.zeros(5, HIDDEN)), mixture.experts, 2, True)
    first_two = Experts(kernels.pack(torch.zeros(2, HIDDEN)), mixture.experts[:2], 2, True)
    x = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(0))
    found, expected = torch.empty_like(x), torch.empty_like(x)
    kernels.experts(x, same, out=found)
    kernels.experts(x, first_two, out=expected)
    torch.testing.assert_close(found, expected)
