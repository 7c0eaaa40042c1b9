"""From a model's files to a runner that is ready: weights, KV cache, warm-up.

Owns the order in which memory is taken. It imports torch, which takes seconds and hundreds of
megabytes, so it is imported only by who is about to compute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.interface import Kernels
from chairlift.kernels.quantised import Matrix
from chairlift.workers.kernel_choice import (
    KernelChoice,
    MathChoice,
    choose_encodings,
    choose_kernels,
)
from chairlift.workers.machine_share import cache_blocks, worker_threads
from chairlift.workers.model_runner import ModelRunner
from chairlift.workers.weights import load_weights

__all__ = ["Compute", "load_runner", "make_runner"]


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
    compute = Compute(engine.kernels, engine.cpu_math, worker_threads(config))
    torch.set_num_threads(compute.threads)
    kernels, weights = _read(spec, compute, report("reading weights"))
    num_blocks = cache_blocks(config, spec)  # only now, of what the weights have left
    runner = ModelRunner(
        spec, weights, num_blocks=num_blocks, block_size=engine.block_size, kernels=kernels
    )
    runner.warm_up(report("warming up"))
    return runner, num_blocks


def make_runner(
    spec: ModelSpec, compute: Compute, *, num_blocks: int, block_size: int
) -> ModelRunner:
    """A runner for who wants no service around it, before its warm-up.

    Raises:
        StartupError: files or kernels are not as they must be.
    """
    kernels, weights = _read(spec, compute, lambda _share: None)
    return ModelRunner(spec, weights, num_blocks=num_blocks, block_size=block_size, kernels=kernels)


def _read(
    spec: ModelSpec, compute: Compute, progress: Callable[[float], None]
) -> tuple[Kernels, dict[str, Matrix]]:
    kernels = choose_kernels(compute.kernels, compute.threads)
    keep = choose_encodings(compute.math, kernels, spec)
    return kernels, load_weights(spec, progress, keep=keep)
