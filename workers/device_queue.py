"""A device that computes while the host goes on: what is sent to it, fetched and repeated.

Owns streams, events, pinned memory and CUDA graphs, and the rule of when which memory may be used
again. On a CPU the same calls do everything at once, so what is built on them is tested there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["CpuQueue", "CudaQueue", "DeviceQueue", "queue_for"]

Ints = NDArray[np.int64]

_CUDA: Any = torch.cuda  # some of its classes have no types


class DeviceQueue(Protocol):
    """Work on a device, in order. All of it comes from one thread at a time."""

    def active(self) -> AbstractContextManager[Any]:
        """Within it, torch computes here."""
        ...

    def send(self, arrays: Sequence[Ints]) -> list[Tensor]:
        """The arrays on the device, for what is queued before the next but one call of this."""
        ...

    def fetch(self, values: Tensor) -> Callable[[], list[int]]:
        """Have (n,) int64 brought to the host as they are at this point of the queue.

        What is returned waits for them. It must be called before the next but one fetch is asked
        for, or not at all.
        """
        ...

    def capture(self, compute: Callable[[], None]) -> Callable[[], None]:
        """What does the same once more, on the same tensors, as often as it is called.

        ``compute`` is called a few times for this, and must not wait for the device.
        """
        ...


def queue_for(device: torch.device) -> DeviceQueue:
    """The one for this device."""
    return CudaQueue(device) if device.type == "cuda" else CpuQueue()


class CpuQueue:
    """Implements ``DeviceQueue`` without a device."""

    def active(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def send(self, arrays: Sequence[Ints]) -> list[Tensor]:
        return [torch.from_numpy(array) for array in arrays]

    def fetch(self, values: Tensor) -> Callable[[], list[int]]:
        fetched: list[int] = values.tolist()
        return lambda: fetched

    def capture(self, compute: Callable[[], None]) -> Callable[[], None]:
        return compute


class CudaQueue:
    """Implements ``DeviceQueue`` on a GPU.

    Inputs travel on a stream of their own, so that those of the next step are there when this one
    is done. Two buffers take turns::

        send k     host: wait until copy k-2 is over     (it was long ago)
                   copies: wait until what was queued before send k-1 is over, which read buffer k-2
                   computing: wait for copy k
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = _CUDA.Stream(device)
        self._inputs = (_Input(device), _Input(device))
        self._outputs = (_Pinned(), _Pinned())
        self._sent = self._fetched = 0
        self._pool = torch.cuda.graph_pool_handle()

    def active(self) -> AbstractContextManager[Any]:
        return torch.cuda.device(self._device)

    def send(self, arrays: Sequence[Ints]) -> list[Tensor]:
        computing = torch.cuda.current_stream(self._device)
        buffer, other = self._inputs[self._sent % 2], self._inputs[(self._sent + 1) % 2]
        self._sent += 1
        other.read.record(computing)
        buffer.host.copied.synchronize()
        *starts, end = accumulate((_aligned(array.size) for array in arrays), initial=0)
        buffer.reserve(end)
        for array, start in zip(arrays, starts, strict=True):
            buffer.numbers[start : start + array.size] = array.ravel()
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(buffer.read)
            buffer.device[:end].copy_(buffer.host.pinned[:end], non_blocking=True)
            buffer.host.copied.record(self._copies)
        computing.wait_event(buffer.host.copied)
        return [
            buffer.device[start : start + array.size].view(array.shape)
            for array, start in zip(arrays, starts, strict=True)
        ]

    def fetch(self, values: Tensor) -> Callable[[], list[int]]:
        output = self._outputs[self._fetched % 2]
        self._fetched += 1
        output.reserve(len(values))
        brought = output.pinned[: len(values)]
        brought.copy_(values, non_blocking=True)
        output.copied.record(torch.cuda.current_stream(self._device))

        def wait() -> list[int]:
            output.copied.synchronize()
            fetched: list[int] = brought.tolist()
            return fetched

        return wait

    def capture(self, compute: Callable[[], None]) -> Callable[[], None]:
        compute()  # compiles what must be, and asks for what is asked for once only
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # Other threads go on meanwhile; NCCL's look at its events.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            compute()
        replay: Callable[[], None] = graph.replay
        return replay


class _Pinned:
    """Host memory that a GPU reads and writes by itself."""

    def __init__(self) -> None:
        self.copied = _CUDA.Event()
        self.pinned = torch.empty(0, dtype=torch.int64)

    def reserve(self, count: int) -> None:
        """Room for so many numbers; whoever calls has waited for the last copy."""
        if self.pinned.numel() < count:
            self.pinned = torch.empty(_rounded(count), dtype=torch.int64, pin_memory=True)


class _Input:
    """The same, and its copy on the GPU; ``read`` is when that is not needed any more."""

    def __init__(self, device: torch.device) -> None:
        self.host = _Pinned()
        self.read = _CUDA.Event()
        self.device = torch.empty(0, dtype=torch.int64, device=device)
        self.numbers: Ints = self.host.pinned.numpy()

    def reserve(self, count: int) -> None:
        """As that of ``_Pinned``."""
        self.host.reserve(count)
        if self.device.numel() < count:
            # Freed memory can be had again by what is queued on this stream, so after its readers.
            self.device = torch.empty_like(self.host.pinned, device=self.device.device)
            self.read.record()
            self.numbers = self.host.pinned.numpy()


def _aligned(count: int) -> int:
    """Kernels are compiled for addresses that are multiples of 16 bytes, and again for others."""
    return -(-count // 16) * 16


def _rounded(count: int) -> int:
    """The next power of two: buffers grow a few times, then never again."""
    return max(1 << 16, 1 << (count - 1).bit_length())
