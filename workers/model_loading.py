"""From a model's files to a runner that is ready: weights, KV cache, warm-up.

Owns the order in which memory is taken. It imports torch, which takes seconds and hundreds of
megabytes, so it is imported only by who is about to compute.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.model_spec import ModelSpec
from chairlift.workers.machine_share import cache_blocks, worker_threads
from chairlift.workers.model_runner import ModelRunner
from chairlift.workers.weights import load_weights

__all__ = ["load_runner"]


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
    threads = worker_threads(config)
    torch.set_num_threads(threads)
    weights = load_weights(spec, report("reading weights"))
    num_blocks = cache_blocks(config, spec)  # only now, of what the weights have left
    runner = ModelRunner(
        spec,
        weights,
        num_blocks=num_blocks,
        block_size=config.engine.block_size,
        kernels=config.engine.kernels,
        threads=threads,
    )
    runner.warm_up(report("warming up"))
    return runner, num_blocks
