"""What is done to numbers one by one: the gate of an MLP, the cap on logits."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from chairlift.kernels.interface import Activation

__all__ = ["gated", "soft_cap", "tanh"]

_BLOCK = 1024


def gated(gate_up: Tensor, activation: Activation, *, out: Tensor) -> None:
    """See ``kernels.interface.Kernels.gated``."""
    rows, width = out.shape
    _gated[(rows, triton.cdiv(width, _BLOCK))](
        gate_up, out, WIDTH=width, IS_SILU=activation == "silu", BLOCK=_BLOCK
    )


def soft_cap(logits: Tensor, cap: float) -> None:
    """See ``kernels.interface.Kernels.soft_cap``."""
    count = logits.numel()
    _soft_cap[(triton.cdiv(count, _BLOCK),)](logits, count, cap, BLOCK=_BLOCK)


@triton.jit
def tanh(x):
    """By what is at hand on a GPU and in the interpreter alike; nothing in it overflows."""
    small = tl.exp(-2.0 * tl.abs(x))
    size = (1.0 - small) / (1.0 + small)
    return tl.where(x < 0.0, -size, size)


@triton.jit
def _sigmoid(x):
    small = tl.exp(-tl.abs(x))
    return tl.where(x < 0.0, small, 1.0) / (1.0 + small)


@triton.jit
def _gated(gate_up, out, WIDTH: tl.constexpr, IS_SILU: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < WIDTH
    gate = tl.load(gate_up + 2 * row * WIDTH + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (2 * row + 1) * WIDTH + at, mask=inside, other=0.0).to(tl.float32)
    if IS_SILU:
        gate = gate * _sigmoid(gate)
    else:
        inner = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)  # √(2 / π)
        gate = 0.5 * gate * (1.0 + tanh(inner))
    tl.store(out + row * WIDTH + at, (gate * up).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _soft_cap(logits, count, cap, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + at, mask=at < count, other=0.0)
    tl.store(logits + at, cap * tanh(value / cap), mask=at < count)
