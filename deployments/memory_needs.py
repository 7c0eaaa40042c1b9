"""How much memory a service takes, before any of it is taken.

Owns the sum: weights as they will be packed, the least KV cache, what passes between the layers of
a step, and the processes around it. What is free, and what follows, is ``deployments.preflight``'s.
"""

from __future__ import annotations

from chairlift.cluster.config import EngineConfig, ServiceConfig
from chairlift.cluster.model_spec import ModelSpec
from chairlift.workers.weight_sizes import PackedSize

__all__ = ["memory_needed"]

_FLOAT = 4
_LARGE_PAGE = 2 * 1024**2
_PROCESS = 350 * 1024**2
"""torch and Python of one worker, measured resident size without weights."""
_CLUSTER = 900 * 1024**2
"""Ray's own processes and one router, measured resident size."""
_LOGIT_COPIES = 3
"""Logits, what sampling makes of them, and their probabilities."""


def memory_needed(
    config: ServiceConfig, spec: ModelSpec, weights: PackedSize, running: int = 0
) -> int:
    """Bytes that are to be taken at the least.

    Replicas of one node have one copy of the weights between them, but a single one has its own.
    Ranks have a share each of weights and cache, and a process each.

    Args:
        config: the service.
        spec: its model.
        weights: of the model, packed.
        running: replicas that run already, and with them all but the other replicas.
    """
    more, ranks = max(0, config.workers.most - running), config.workers.tensor_parallel
    needed = (0 if running else _CLUSTER) + more * ranks * _PROCESS
    if config.engine.simulated_step_ms is None and more:
        needed += weights.size if running <= 1 else 0
        needed += more * _least_cache(config.engine, spec, weights, ranks)
        needed += more * _step(config.engine, spec, ranks)
    return needed


def _least_cache(engine: EngineConfig, spec: ModelSpec, weights: PackedSize, ranks: int) -> int:
    """As configured; else a block, which takes a large page for K and V of each layer and rank."""
    if engine.kv_memory != "auto":
        return engine.kv_memory
    block = engine.block_size * spec.kv_bytes_per_token(weights.cache_number)
    return max(block, ranks * 2 * spec.num_layers * _LARGE_PAGE)


def _step(engine: EngineConfig, spec: ModelSpec, ranks: int) -> int:
    """What passes between the kernels of the largest step, over all ranks.

    Each has its share of heads and columns, but whole rows of what passes between layers, and all
    logits.
    """
    attention = 2 * (spec.num_heads + spec.num_kv_heads) * spec.head_dim
    row = ranks * 3 * spec.hidden_size + attention + 3 * spec.intermediate_size
    logits = ranks * _LOGIT_COPIES * engine.max_sequences * spec.vocab_size
    return _FLOAT * (engine.token_budget * row + logits)
