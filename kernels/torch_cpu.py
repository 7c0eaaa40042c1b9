"""Kernels around attention in plain torch: normalisation, rotation, cache writes, activation.

Owns the fallback for machines without a compiler. Same meaning as ``kernels.reference``, for
contiguous rows. Results are float32, of whatever type inputs are, but for ``linear``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from chairlift.kernels.interface import Activation

__all__ = ["apply_rope", "gated", "kv_write", "linear", "rms_norm"]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x weightᵀ + bias``: (rows, in), (out, in), (out,) → (rows, out)."""
    return F.linear(x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x²) + eps) × weight`` over the last dimension."""
    x = x.float()
    return (x * x.square().mean(-1, keepdim=True).add_(eps).rsqrt_()).mul_(weight)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate pairs ``(x[i], x[i + dim/2])`` of each head; elements from ``dim`` on pass through.

    Args:
        x: (rows, heads, head_dim), strided rows allowed.
        cos: (rows, dim / 2), dim ≤ head_dim.
        sin: as ``cos``.
    """
    rows, heads, head_dim = x.shape
    dim, sin = 2 * cos.shape[1], sin[:, None]
    halves = x[..., :dim].view(rows, heads, 2, -1)
    out = halves * cos[:, None, None]
    out[:, :, 0].addcmul_(halves[:, :, 1], sin, value=-1)
    out[:, :, 1].addcmul_(halves[:, :, 0], sin)
    out = out.view(rows, heads, dim)
    return out if dim == head_dim else torch.cat((out, x[..., dim:]), dim=-1)


def kv_write(cache: Tensor, new: Tensor, slots: Tensor) -> None:
    """Store ``new`` (rows, kv_heads, head_dim) at ``slots`` (rows,) of ``cache``, in place.

    Slots of one call must differ.
    """
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, new)


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """``activation(gate) × up``: (rows, gate then up) → (rows, gate)."""
    width = gate_up.shape[-1] // 2
    gate = gate_up[..., :width].float()
    active = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
    return active.mul_(gate_up[..., width:])
