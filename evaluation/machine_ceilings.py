"""What this machine's memory and the library's matrix products reach: the ceilings of every kernel.

Owns their measurement. Each is the best of a few tries: other work can only slow them down.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from chairlift.cluster.capacity_devices import CPU, Device
from chairlift.cluster.machine import read_memory

__all__ = ["Ceilings", "measure_ceilings", "this_machine"]

_READ_SHAPE = (1 << 15, 1 << 12)
_SIDE = 2048
_TRIES = 4


@dataclass(frozen=True, slots=True)
class Ceilings:
    """10⁹ bytes or operations per second, with torch's threads.

    Attributes:
        read: a matrix-vector product over 512 MiB.
        copy: bytes read and bytes written, together.
        float32, int8: square products of 2,048; the second with inputs that are quantised on the
            way, as a linear layer's are.
    """

    read_gb_per_s: float
    copy_gb_per_s: float
    float32_gflops: float
    int8_gops: float


def measure_ceilings() -> Ceilings:
    """Takes about a second."""
    with torch.inference_mode():
        numbers, other = torch.ones(_READ_SHAPE), torch.ones(_READ_SHAPE)
        vector = torch.ones(_READ_SHAPE[1])
        read = numbers.nbytes / _best(lambda: numbers.mv(vector))
        copy = 2 * numbers.nbytes / _best(lambda: other.copy_(numbers))
        left, right = torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE)
        operations = 2 * _SIDE**3
        packed = _packed(right)
        return Ceilings(
            read_gb_per_s=read / 1e9,
            copy_gb_per_s=copy / 1e9,
            float32_gflops=operations / _best(lambda: left @ right) / 1e9,
            int8_gops=operations
            / _best(lambda: torch.ops.quantized.linear_dynamic(left, packed, False))
            / 1e9,
        )


def this_machine() -> Device:
    """Its processors as a device of capacity planning, with the memory that is free."""
    found = measure_ceilings()
    flops = {"float32": 1e9 * found.float32_gflops, "int8": 1e9 * found.int8_gops}
    memory = float(read_memory().available)
    return Device(CPU, memory, 1e9 * found.read_gb_per_s, flops, 0, "measured now")


def _packed(right: torch.Tensor) -> object:
    with warnings.catch_warnings(action="ignore"):  # old, and still the library's fastest
        quantised = torch.quantize_per_tensor(right, 0.03, 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(quantised, None)


def _best(run: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_TRIES):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
