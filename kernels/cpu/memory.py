"""Memory for weights and caches, in large pages where the system has them.

Owns the slabs from which tensors are cut. A step reads every weight once, so each page of 4 KiB
would be looked up anew each time, and on virtual machines at a price: with large pages a step of
one row takes a sixth less time.
"""

from __future__ import annotations

import contextlib
import math
import mmap

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Memory", "advise_large_pages", "large_pages"]

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
            self._free = large_pages(max(_SLAB, taken * _FLOAT)).view(np.float32)
        tensor = torch.from_numpy(self._free[:size]).view(shape)
        self._free = self._free[taken:]
        return tensor


def large_pages(size: int) -> NDArray[np.uint8]:
    """So many zeros, rounded up to large pages; taken as they are first written.

    Private, for to Linux a mapping that children could share is shared memory, which most systems
    give no large pages.
    """
    size = -(-size // _LARGE_PAGE) * _LARGE_PAGE
    pages = mmap.mmap(-1, size + _LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    advise_large_pages(pages)
    memory = np.frombuffer(pages, np.uint8)
    skip = -memory.ctypes.data % _LARGE_PAGE
    return memory[skip : skip + size]


def advise_large_pages(pages: mmap.mmap) -> None:
    """Ask for them, where the kernel has any for such memory."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
