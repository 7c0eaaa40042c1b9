from __future__ import annotations

import pytest

from chairlift.cluster.errors import StartupError
from chairlift.workers.kv_cache import blocks_for
from support.llama_models import tiny_spec

MIB = 1024**2
SPEC = tiny_spec(num_layers=4, num_kv_heads=2, head_dim=16)
BLOCK = 2 * 4 * 2 * 16 * 4 * 16  # K and V × layers × heads × head_dim × float32 × block size


def test_memory_is_filled_with_whole_blocks():
    assert blocks_for(10 * BLOCK + BLOCK - 1, SPEC, 16, available=20 * BLOCK) == 10


def test_smaller_elements_fit_more_blocks():
    assert blocks_for(10 * BLOCK, SPEC, 16, available=20 * BLOCK, element_size=2) == 20


def test_auto_takes_a_quarter_of_what_is_free():
    assert blocks_for("auto", SPEC, 16, available=400 * BLOCK) == 100


def test_auto_stops_at_two_gibibytes():
    assert blocks_for("auto", SPEC, 16, available=2**40) == 2 * 1024**3 // BLOCK


@pytest.mark.parametrize("block_size", [1, 16, 20, 256])
def test_the_least_cache_holds_32_tokens(block_size):
    size = -(-32 // block_size) * block_size * BLOCK // 16
    assert blocks_for(size, SPEC, block_size, available=size) * block_size >= 32
    with pytest.raises(StartupError, match="tiny needs"):
        blocks_for(size - 1, SPEC, block_size, available=size)


def test_a_model_of_short_context_needs_no_more_than_that():
    spec = tiny_spec(num_layers=4, num_kv_heads=2, head_dim=16, context_length=16)
    assert blocks_for(BLOCK, spec, 16, available=BLOCK) == 1


def test_too_little_memory_is_one_line_that_says_how_much_is_needed():
    with pytest.raises(StartupError) as caught:
        blocks_for("auto", SPEC, 16, available=BLOCK)
    assert str(caught.value) == (
        "engine.kv_memory: 1 MiB hold 0 blocks of the KV cache, tiny needs 2; "
        "give it 1 MiB or more of 1 MiB free"
    )


def test_more_than_there_is_is_refused():
    with pytest.raises(StartupError, match="3 MiB asked for, 2 MiB free"):
        blocks_for(3 * MIB, SPEC, 16, available=2 * MIB)
