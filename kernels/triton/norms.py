"""RMS norms, of rows and of single heads; sums in float32, in an order that the width decides."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from chairlift.kernels.interface import Heads

__all__ = ["norm_heads", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, out: Tensor) -> None:
    """See ``kernels.interface.Kernels.rms_norm``."""
    rows, width = x.shape
    padded = triton.next_power_of_2(width)
    warps = min(max(padded // 512, 1), 16)
    _rms_norm[(rows,)](x, weight, out, eps, WIDTH=width, PADDED=padded, num_warps=warps)


def norm_heads(qkv: Tensor, heads: Heads, query: Tensor, key: Tensor, eps: float) -> None:
    """See ``kernels.interface.Kernels.norm_heads``."""
    normed = heads.num_heads + heads.num_kv_heads
    _norm_heads[(qkv.shape[0], normed)](
        *(qkv, query, key, eps),
        HEADS=heads.num_heads,
        DIM=heads.head_dim,
        WIDTH=heads.width,
        PADDED=triton.next_power_of_2(heads.head_dim),
        num_warps=1,
    )


@triton.jit
def _normed(x, weight, eps, COUNT: tl.constexpr):
    x = x.to(tl.float32)
    mean = tl.sum(x * x, 0) / COUNT
    return x * (1.0 / tl.sqrt(mean + eps)) * weight.to(tl.float32)


@triton.jit
def _rms_norm(x, weight, out, eps, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    at = tl.arange(0, PADDED)
    start, inside = tl.program_id(0).to(tl.int64) * WIDTH, at < WIDTH
    value = tl.load(x + start + at, mask=inside, other=0.0)
    normed = _normed(value, tl.load(weight + at, mask=inside, other=0.0), eps, WIDTH)
    tl.store(out + start + at, normed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _norm_heads(
    qkv, query, key, eps,
    HEADS: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    row, head, at = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, PADDED)
    inside = at < DIM
    weight = tl.load((query if head < HEADS else key) + at, mask=inside, other=0.0)
    place = qkv + row * WIDTH + head * DIM + at
    normed = _normed(tl.load(place, mask=inside, other=0.0), weight, eps, DIM)
    tl.store(place, normed.to(qkv.dtype.element_ty), mask=inside)
