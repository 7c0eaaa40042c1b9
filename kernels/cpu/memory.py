"""Memory for weights and caches, in large pages where the system has them.

Owns the slabs from which tensors are cut. A step reads every weight once, so each page of 4 KiB
would be looked up anew each time, and on virtual machines at a price: with large pages one row
went through all linear layers in about two thirds of the time.
"""

from __future__ import annotations

import contextlib
import math
import mmap

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Memory"]

_LARGE_PAGE = 2 << 20
_SLAB = 32 << 20
_LINE = 64
_FLOAT = 4


class Memory:
    """Tensors that lie side by side; a slab lives for as long as one of them."""

    def __init__(self) -> None:
        self._free: NDArray[np.float32] = np.empty(0, np.float32)

    def zeros(self, *shape: int) -> Tensor:
        """Float32 zeros, from the start of a cache line; memory is taken as it is written."""
        size = math.prod(shape)
        taken = -(-size * _FLOAT // _LINE) * _LINE // _FLOAT
        if taken > len(self._free):
            self._free = _slab(max(_SLAB, taken * _FLOAT))
        tensor = torch.from_numpy(self._free[:size]).view(shape)
        self._free = self._free[taken:]
        return tensor


def _slab(size: int) -> NDArray[np.float32]:
    """So many bytes at least, from the start of a large page."""
    pages = mmap.mmap(-1, size + _LARGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(pages, np.float32)
    skip = -memory.ctypes.data % _LARGE_PAGE // _FLOAT
    return memory[skip:]
