"""What one of several workers on a machine may take of it: CPU threads, and room for a KV cache.

Owns the rule of sharing; the machine is read by ``cluster.machine``.
"""

from __future__ import annotations

import dataclasses

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.machine import read_cores, read_memory
from chairlift.cluster.model_spec import ModelSpec
from chairlift.workers.kv_cache import blocks_for

__all__ = ["cache_blocks", "worker_threads"]


def worker_threads(config: ServiceConfig) -> int:
    """CPU threads for one worker: as configured, or a fair share of the usable cores."""
    workers = config.workers
    if workers.threads != "auto":
        return workers.threads
    return max(1, int(read_cores().usable) // (workers.most * workers.tensor_parallel))


def cache_blocks(config: ServiceConfig, spec: ModelSpec, element_size: int = 4) -> int:
    """Blocks of one replica's KV cache, within its share of what is free now.

    Each of its ranks has all of the blocks, with its own heads in them.

    Args:
        config: the service.
        spec: the whole model.
        element_size: bytes of one number in the cache.

    Raises:
        StartupError: there is too little of it.
    """
    # Where there are more ranks than KV heads, some ranks have the same.
    heads = max(spec.num_kv_heads, config.workers.tensor_parallel)
    return blocks_for(
        config.engine.kv_memory,
        dataclasses.replace(spec, num_kv_heads=heads),
        block_size=config.engine.block_size,
        available=read_memory().available // config.workers.most,
        element_size=element_size,
    )
