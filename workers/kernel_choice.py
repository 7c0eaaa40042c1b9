"""Which kernels a replica computes with.

Owns the decision between GPU and CPU, between C++ and plain torch, between float32 and the
encodings of the file, and what is said when it is the second best. Those for a GPU are imported
only where one computes.
"""

from __future__ import annotations

import importlib
import logging
from typing import Literal

import torch

from chairlift.cluster.config import EngineConfig, cache_folder
from chairlift.cluster.errors import ConfigError, StartupError
from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.cpu.build import BuildError, build, describe
from chairlift.kernels.cpu.cpp_kernels import CppKernels
from chairlift.kernels.cpu.library import Library
from chairlift.kernels.flash import Flash, Gpu, Needs, Scoring, find_flash
from chairlift.kernels.interface import Kernels
from chairlift.kernels.torch_kernels import TorchKernels
from chairlift.workers.shards import Share
from chairlift.workers.weights import stored_encodings

__all__ = [
    "CpuKernelChoice",
    "KernelChoice",
    "MathChoice",
    "choose_device",
    "choose_encodings",
    "choose_gpu_kernels",
    "choose_kernels",
    "describe_kernels",
]

CpuKernelChoice = Literal["auto", "cpp", "torch"]
KernelChoice = Literal["auto", "cpp", "torch", "triton"]
MathChoice = Literal["auto", "float32", "int8"]

_LOGGER = logging.getLogger(__name__)

_TRITON_NEEDED = (
    "engine.kernels: computing on a GPU needs triton; install Chairlift with the extra gpu, or "
    "choose engine.device cpu"
)


def choose_device(engine: EngineConfig, rank: int = 0) -> torch.device:
    """What computes; not a CPU exactly where ``choose_gpu_kernels`` has the kernels.

    Args:
        engine: its ``device`` and ``kernels``.
        rank: which of the GPUs that this process sees.

    Raises:
        ConfigError: a GPU is asked for that is not there, or with kernels that are not for it.
    """
    wanted, kernels = engine.device, engine.kernels
    for_gpu = kernels in ("auto", "triton")
    if wanted == "cuda" and not for_gpu:
        raise ConfigError(
            f"engine.kernels: {kernels} computes on the CPU only; choose auto or triton, or "
            "engine.device cpu"
        )
    if wanted != "cpu" and for_gpu:
        if torch.cuda.is_available():
            return torch.device("cuda", rank % torch.cuda.device_count())
        if wanted == "cuda":
            raise ConfigError("engine.device: cuda asked for, but torch sees no GPU here")
    if kernels == "triton":
        _check_interpreted()
    return torch.device("cpu")


def choose_kernels(choice: CpuKernelChoice, threads: int) -> Kernels:
    """The kernels of a CPU, ready to run.

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


def describe_kernels() -> dict[str, str]:
    """The C++ kernels' library, compiler and flags; empty where they cannot be had."""
    try:
        return describe(build(cache_folder()))
    except BuildError:
        return {}


def choose_gpu_kernels(
    engine: EngineConfig, spec: ModelSpec, share: Share, device: torch.device
) -> Kernels:
    """The kernels of a GPU, ready to run; says which they are, and why.

    Args:
        engine: its ``exact``, ``dtype``, ``kv_type``, ``attention`` and ``block_size``.
        spec: the whole model.
        share: of the rank that computes.
        device: where; on a CPU, Triton's interpreter runs them.

    Raises:
        StartupError: Triton is not installed, or no FlashAttention package can be used although
            one is asked for.
    """
    try:
        from chairlift.kernels.triton.triton_kernels import TritonKernels
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise StartupError(_TRITON_NEEDED) from None
    dtype: torch.dtype = getattr(
        torch, spec.stored_type if engine.dtype == "auto" else engine.dtype
    )
    flash = _choose_flash(engine, spec, share, dtype, device)
    _LOGGER.info(
        "computing on %s in %s, %s",
        torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU, interpreted,",
        str(dtype).removeprefix("torch."),
        "each sequence as if it were alone" if engine.exact else "by cuBLAS's choice",
    )
    return TritonKernels(device, dtype, engine.exact, flash)


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


def _check_interpreted() -> None:
    """Raises unless Triton runs kernels without a GPU."""
    try:
        triton = importlib.import_module("triton")
    except ModuleNotFoundError:
        raise StartupError(_TRITON_NEEDED) from None
    if not triton.knobs.runtime.interpret:
        raise ConfigError("engine.kernels: triton needs a GPU, and torch sees none here")


def _choose_flash(
    engine: EngineConfig, spec: ModelSpec, share: Share, dtype: torch.dtype, device: torch.device
) -> Flash | None:
    """The FlashAttention package that fits; None where Triton's kernels do it."""
    if engine.attention == "triton":
        reasons = "engine.attention says so"
    elif engine.kv_type == "float8":
        reasons = "FlashAttention reads no float8 cache as it is here"
    else:
        needs = Needs(
            num_heads=len(share.heads),
            num_kv_heads=len(share.kv_heads),
            head_dim=spec.head_dim,
            dtype=dtype,
            block_size=engine.block_size,
            scorings=_scorings(spec),
            exact=engine.exact,
        )
        gpu = None
        if device.type == "cuda":
            gpu = Gpu(device, torch.cuda.get_device_capability(device))
        found = find_flash(needs, gpu)
        if isinstance(found, Flash):
            _LOGGER.info("attention by %s", found.package)
            return found
        reasons = "; ".join(f"{each.package}: {each.reason}" for each in found.refusals)
    if engine.attention == "flash":
        raise StartupError(
            f"engine.attention: flash asked for, but it cannot be used here: {reasons}; "
            "choose auto or triton"
        )
    _LOGGER.info("attention by Triton kernels: %s", reasons)
    return None


def _scorings(spec: ModelSpec) -> tuple[Scoring, ...]:
    """Those of the model's layers, each once."""
    scale = spec.head_dim**-0.5 if spec.query_scale is None else spec.query_scale
    windows = {
        spec.window if index in spec.local_layers else None for index in range(spec.num_layers)
    }
    ordered = sorted(windows, key=lambda window: window or 0)
    return tuple(Scoring(scale, window, spec.attention_soft_cap) for window in ordered)
