"""Which kernels a replica computes with.

Owns the decision between C++ and plain torch, that between float32 and the encodings of the file,
and what is said when it is the second best.
"""

from __future__ import annotations

import logging
from typing import Literal

from chairlift.cluster.config import cache_folder
from chairlift.cluster.errors import StartupError
from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.cpu.build import BuildError, build
from chairlift.kernels.cpu.cpp_kernels import CppKernels
from chairlift.kernels.cpu.library import Library
from chairlift.kernels.interface import Kernels
from chairlift.kernels.torch_kernels import TorchKernels
from chairlift.workers.weights import stored_encodings

__all__ = ["KernelChoice", "MathChoice", "choose_encodings", "choose_kernels"]

KernelChoice = Literal["auto", "cpp", "torch"]
MathChoice = Literal["auto", "float32", "int8"]

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


def choose_encodings(choice: MathChoice, kernels: Kernels, spec: ModelSpec) -> frozenset[str]:
    """The encodings whose matrices are computed with as the file has them, in integers.

    Args:
        choice: ``int8``; ``float32``, so none; or ``auto``, the first where it can be had.
        kernels: that compute.
        spec: the model.

    Raises:
        StartupError: ``int8`` cannot be had.
    """
    if choice == "float32":
        return frozenset()
    found = kernels.encodings & stored_encodings(spec)
    if choice == "int8" and not found:
        needed = ", ".join(sorted(kernels.encodings))
        reason = f"{spec.path} is no GGUF file with {needed}" if needed else "no C++ kernels"
        raise StartupError(f"engine.cpu_math: {reason}; choose auto or float32")
    return found
