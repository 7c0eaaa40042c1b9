from __future__ import annotations

import pytest

from chairlift.cluster.config import EngineConfig
from chairlift.cluster.errors import StartupError
from chairlift.workers.gpu_memory import gpu_blocks, step_bytes
from chairlift.workers.shards import share_of
from support.llama_models import tiny_spec

GIB = 1024**3
SPEC = tiny_spec(num_heads=8, num_kv_heads=4, head_dim=64, num_layers=4)
BLOCK = 16 * 2 * 4 * 4 * 64 * 2
"""Bytes: positions, K and V, layers, heads, elements, bytes of an element."""


def blocks(memory="auto", *, rank=0, size=1, available=GIB, extra=0):
    return gpu_blocks(
        EngineConfig(kv_memory=memory),
        SPEC,
        share_of(SPEC, rank, size),
        available=available,
        element_size=2,
        extra=extra,
    )


def test_the_cache_takes_most_of_what_is_left_less_the_blocks_that_are_not_the_engines():
    assert blocks() == int(0.9 * GIB) // BLOCK
    assert blocks(extra=80) == int(0.9 * GIB) // BLOCK - 80


def test_or_what_is_asked_for_if_there_is_so_much():
    assert blocks(100 * BLOCK) == 100
    with pytest.raises(
        StartupError, match=r"^engine\.kv_memory: 2048 MiB asked for, 9\d\d MiB free"
    ):
        blocks(2 * GIB)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_every_rank_has_all_blocks_with_heads_of_its_own(size):
    own = BLOCK // min(size, 4)
    assert blocks(size=size) == int(0.9 * GIB) // own
    whole = BLOCK * max(size, 4) // 4
    assert blocks(100 * whole, size=size) == 100


def test_a_rank_with_more_heads_has_room_for_fewer_blocks():
    assert blocks(rank=0, size=3) < blocks(rank=1, size=3)


@pytest.mark.parametrize("available", [-GIB, 0, BLOCK])
def test_a_full_gpu_is_refused(available):
    with pytest.raises(StartupError, match=r"^engine\.kv_memory: "):
        blocks(available=available, extra=5)


def test_a_larger_step_takes_more():
    def taken(**engine):
        return step_bytes(EngineConfig(**engine), SPEC, share_of(SPEC, 0, 1), 2)

    assert taken(token_budget=4096) > taken(token_budget=512)
    assert taken(max_sequences=1024) > taken()
    logits = 4 * 1024 * SPEC.vocab_size
    assert taken(max_sequences=1024) > 2 * logits
