"""From a model's files to a runner that is ready: weights, KV cache, warm-up.

Owns the order in which memory is taken. It imports torch, which takes seconds and hundreds of
megabytes, so it is imported only by who is about to compute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from chairlift.cluster.config import ServiceConfig, cache_folder
from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.cpu.cpp_kernels import CppKernels
from chairlift.kernels.interface import Kernels
from chairlift.workers.kernel_choice import (
    KernelChoice,
    MathChoice,
    choose_encodings,
    choose_kernels,
)
from chairlift.workers.machine_share import cache_blocks, worker_threads
from chairlift.workers.model_runner import ModelRunner, cache_type
from chairlift.workers.packed_weights import PackedCache
from chairlift.workers.weights import load_weights

__all__ = ["Compute", "load_runner", "make_runner"]

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compute:
    """With what a model is computed; see ``cluster.config.EngineConfig``."""

    kernels: KernelChoice = "auto"
    math: MathChoice = "float32"
    threads: int = 1


def load_runner(
    config: ServiceConfig, spec: ModelSpec, report: Callable[[str], Callable[[float], None]]
) -> tuple[ModelRunner, int]:
    """The runner, and the blocks of its KV cache.

    Args:
        config: the service.
        spec: the model.
        report: name of a stage → who is told the done share of it.

    Raises:
        StartupError: files, memory or kernels are not as they must be.
    """
    engine = config.engine
    threads = worker_threads(config)
    torch.set_num_threads(threads)
    kernels = choose_kernels(engine.kernels, threads)
    keep = choose_encodings(engine.cpu_math, kernels, spec)
    _LOGGER.info("computing linear layers in %s", "int8" if keep else "float32")
    weights = PackedCache(cache_folder() / "weights").load(
        spec, kernels, keep, report("reading weights"), shared=config.workers.replicas > 1
    )
    # Only now, of what the weights have left.
    num_blocks = cache_blocks(config, spec, cache_type(kernels, weights).itemsize)
    runner = ModelRunner(
        spec, weights, num_blocks=num_blocks, block_size=engine.block_size, kernels=kernels
    )
    _spare_threads(kernels)
    runner.warm_up(report("warming up"))
    return runner, num_blocks


def make_runner(
    spec: ModelSpec, compute: Compute, *, num_blocks: int, block_size: int
) -> ModelRunner:
    """A runner for who wants no service around it, before its warm-up.

    Raises:
        StartupError: files or kernels are not as they must be.
    """
    kernels = choose_kernels(compute.kernels, compute.threads)
    keep = choose_encodings(compute.math, kernels, spec)
    weights = load_weights(spec, lambda _share: None, keep=keep)
    _spare_threads(kernels)
    return ModelRunner(spec, weights, num_blocks=num_blocks, block_size=block_size, kernels=kernels)


def _spare_threads(kernels: Kernels) -> None:
    """Leave the cores to the kernels, if these have threads of their own.

    Those of torch look for work for a while after each of its operations, however small: on two
    cores that took a tenth of the time of 32 sequences and a quarter of that of eight.
    """
    if isinstance(kernels, CppKernels):
        torch.set_num_threads(1)
