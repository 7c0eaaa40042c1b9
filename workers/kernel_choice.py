"""Which kernels a replica computes with.

Owns the one decision between C++ and plain torch, and what is said when it is the second best.
"""

from __future__ import annotations

import logging
from typing import Literal

from chairlift.cluster.config import cache_folder
from chairlift.cluster.errors import StartupError
from chairlift.kernels.cpu.build import BuildError, build
from chairlift.kernels.cpu.cpp_kernels import CppKernels
from chairlift.kernels.cpu.library import Library
from chairlift.kernels.interface import Kernels
from chairlift.kernels.torch_kernels import TorchKernels

__all__ = ["KernelChoice", "choose_kernels"]

KernelChoice = Literal["auto", "cpp", "torch"]

_LOGGER = logging.getLogger(__name__)


def choose_kernels(choice: KernelChoice, threads: int) -> Kernels:
    """The kernels, ready to run.

    Args:
        choice: ``cpp``, compiled at first use; ``torch``; or ``auto``, the first where they can
            be had and otherwise the second, with a warning.
        threads: CPU threads of the C++ kernels; torch's own are set for the whole process.

    Raises:
        StartupError: ``cpp`` cannot be had.
    """
    if choice == "torch":
        return TorchKernels()
    try:
        return CppKernels(Library(build(cache_folder()), threads))
    except BuildError as error:
        if choice == "cpp":
            raise StartupError(f"engine.kernels: {error}") from None
        _LOGGER.warning(
            "computing in plain torch, where tokens may depend on what shares the batch: %s", error
        )
        return TorchKernels()
