"""A mixture of experts as calls of single kernels, for those that have no faster way.

Owns who takes which expert, and the order in which a row's experts are summed: ascending, so it
is a matter of the row alone.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from chairlift.kernels.interface import Experts, Kernels

__all__ = ["Route", "mix_experts", "route"]


class Route(Protocol):
    """What ``route`` does, whoever does it."""

    def __call__(self, scores: Tensor, per_token: int, *, normalise: bool) -> tuple[Tensor, Tensor]:
        """See ``route``."""
        ...


def route(scores: Tensor, per_token: int, *, normalise: bool) -> tuple[Tensor, Tensor]:
    """Which experts each row takes, and with what weight: (rows, per_token) float32 and int64.

    Args:
        scores: (rows, experts) float32 of the router.
        per_token: how many; the likeliest, of equal ones the first.
        normalise: divide the weights by their sum.
    """
    # Stable, for which of two equal scores comes first must not depend on the batch.
    order = torch.sort(scores, dim=1, descending=True, stable=True)
    chosen = order.indices[:, :per_token]
    weights = torch.softmax(scores, 1).gather(1, chosen)
    if normalise:
        # One after the other: how torch sums a row may depend on how many there are.
        weights = weights / sum(weights[:, index, None] for index in range(per_token))
    return weights, chosen


def mix_experts(
    kernels: Kernels, x: Tensor, layer: Experts, *, out: Tensor, route: Route = route
) -> None:
    """See ``kernels.interface.Kernels.experts``."""
    scores = torch.empty(len(x), layer.router.outputs, device=x.device)
    kernels.linear(x, layer.router, out=scores)
    weights, chosen = route(scores, layer.per_token, normalise=layer.normalise)
    total = torch.zeros(x.shape, device=x.device)
    for index, expert in enumerate(layer.experts):
        taken = chosen == index
        rows = taken.any(1).nonzero()[:, 0]
        if not len(rows):
            continue
        gate_up = x.new_empty(len(rows), expert.gate_up.outputs)
        inner = x.new_empty(len(rows), expert.down.inputs)
        made = x.new_empty(len(rows), x.shape[1])
        kernels.linear(x[rows], expert.gate_up, out=gate_up)
        kernels.gated(gate_up, expert.activation, out=inner)
        kernels.linear(inner, expert.down, out=made)
        # The others are zeros: this sum is exact.
        weight = (weights * taken).sum(1)[rows, None]
        # Multiplied, then added: rounded twice on every path that torch may take.
        total[rows] = total[rows] + made * weight
    out.copy_(total)
