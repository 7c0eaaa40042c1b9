"""What one of several replicas on a machine may take of it: CPU threads, and room for a KV cache.

Owns the rule of sharing; the machine is read by ``cluster.machine``.
"""

from __future__ import annotations

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.machine import read_cores, read_memory
from chairlift.cluster.model_spec import ModelSpec
from chairlift.workers.kv_cache import blocks_for

__all__ = ["cache_blocks", "worker_threads"]


def worker_threads(config: ServiceConfig) -> int:
    """CPU threads for one replica: as configured, or a fair share of the usable cores."""
    if config.workers.threads != "auto":
        return config.workers.threads
    return max(1, int(read_cores().usable) // config.workers.replicas)


def cache_blocks(config: ServiceConfig, spec: ModelSpec, element_size: int = 4) -> int:
    """Blocks of one replica's KV cache, within its share of what is free now.

    ``element_size``: bytes of one number in the cache.

    Raises:
        StartupError: there is too little of it.
    """
    return blocks_for(
        config.engine.kv_memory,
        spec,
        block_size=config.engine.block_size,
        available=read_memory().available // config.workers.replicas,
        element_size=element_size,
    )
