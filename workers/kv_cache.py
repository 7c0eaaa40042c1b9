"""How large the KV cache is.

Owns the one decision from memory to blocks. Allocates nothing: the blocks' owner is
``workers.block_pool``, their tensors are ``workers.model_runner``'s.
"""

from __future__ import annotations

from typing import Literal

from chairlift.cluster.errors import StartupError
from chairlift.cluster.model_spec import ModelSpec

__all__ = ["blocks_for"]

_AUTO_SHARE = 4
_AUTO_MOST = 2 * 1024**3
_LEAST_TOKENS = 32  # prompt and output together; less serves nobody


def blocks_for(
    memory: int | Literal["auto"],
    spec: ModelSpec,
    block_size: int,
    available: int,
    *,
    element_size: int = 4,
) -> int:
    """Number of blocks that the memory holds.

    Args:
        memory: bytes, or ``auto`` for a quarter of ``available``, at most 2 GiB.
        spec: the model.
        block_size: positions of one block.
        available: bytes that this replica may take in all.
        element_size: bytes of one number in the cache.

    Raises:
        StartupError: the cache would not hold a sequence of 32 tokens, or the given memory is
            more than there is.
    """
    block_bytes = block_size * spec.kv_bytes_per_token(element_size)
    size = min(available // _AUTO_SHARE, _AUTO_MOST) if memory == "auto" else memory
    if size > available:
        raise StartupError(
            f"engine.kv_memory: {_mib(size)} asked for, {_mib(available)} free; ask for less"
        )
    blocks = size // block_bytes
    least = -(-min(_LEAST_TOKENS, spec.context_length) // block_size)
    if blocks < least:
        raise StartupError(
            f"engine.kv_memory: {_mib(size)} hold {blocks} blocks of the KV cache, {spec.name} "
            f"needs {least}; give it {_mib(least * block_bytes)} or more of {_mib(available)} free"
        )
    return blocks


def _mib(size: int) -> str:
    """Rounded up, so that a size which a message asks for is enough."""
    return f"{-(-size // 1024**2)} MiB"
