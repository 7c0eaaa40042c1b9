"""How many blocks of KV cache a GPU has room for, once the weights are there.

Owns that estimate; who asks reads the free memory. No torch.
"""

from __future__ import annotations

from dataclasses import replace

from chairlift.cluster.config import EngineConfig
from chairlift.cluster.model_spec import ModelSpec
from chairlift.workers.kv_cache import blocks_for
from chairlift.workers.shards import Share, share_spec

__all__ = ["gpu_blocks", "step_bytes"]

_AUTO_SHARE = 0.9
_LIBRARIES = 256 * 1024**2
"""What CUDA's libraries and graphs take for themselves, later."""


def step_bytes(engine: EngineConfig, spec: ModelSpec, share: Share, element_size: int) -> int:
    """What the largest step takes besides weights and cache, rounded up generously.

    Every row has hidden states, their copies, what attention and the MLP make of them, and of an
    expert model as many times the latter; who samples has logits, and once more while it is
    adjusted.
    """
    rows = max(engine.token_budget, engine.max_sequences)
    heads = len(share.heads) + 2 * len(share.kv_heads)
    inner = 3 * len(share.columns)
    if spec.experts is not None:
        inner = spec.experts.per_token * (3 * len(share.expert_columns) + spec.hidden_size)
    row = 4 * spec.hidden_size + 2 * heads * spec.head_dim + inner
    sampling = max(engine.max_sequences, engine.graph_sequences)
    logits = 3 * 4 * sampling * spec.vocab_size
    return 2 * rows * row * element_size + logits + _LIBRARIES


def gpu_blocks(
    engine: EngineConfig,
    spec: ModelSpec,
    share: Share,
    *,
    available: int,
    element_size: int,
    extra: int,
) -> int:
    """The engine's blocks of the cache, of which the rank has its own heads.

    Args:
        engine: its ``kv_memory`` is for all ranks together; ``auto`` takes nine tenths of what is
            available.
        spec: the whole model.
        share: of the rank.
        available: bytes on its GPU, less what a step takes.
        element_size: bytes of one number in the cache.
        extra: blocks that are needed besides.

    Raises:
        StartupError: there is too little memory.
    """
    # Where there are more ranks than KV heads, some ranks have the same.
    whole = replace(spec, num_kv_heads=max(spec.num_kv_heads, share.size))
    own = engine.block_size * share_spec(spec, share).kv_bytes_per_token(element_size)
    all_ranks = engine.block_size * whole.kv_bytes_per_token(element_size)
    free = (int(_AUTO_SHARE * max(available, 0)) // own - extra) * all_ranks
    return blocks_for(
        max(free, 0) if engine.kv_memory == "auto" else engine.kv_memory,
        whole,
        block_size=engine.block_size,
        available=max(free, 0),
        element_size=element_size,
    )
