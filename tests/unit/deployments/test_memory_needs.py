"""What a service takes is counted as it will be taken."""

from __future__ import annotations

from chairlift.cluster.config import ServiceConfig, load_config
from chairlift.deployments.memory_needs import memory_needed
from chairlift.workers.weight_sizes import PackedSize
from support.llama_models import tiny_spec

MIB = 1024**2
SPEC = tiny_spec()
WEIGHTS = PackedSize("float32", 1000 * MIB)


def config(**paths: object) -> ServiceConfig:
    flags = {name.replace("__", "."): value for name, value in paths.items()}
    return load_config(overrides=flags, environment={})


def needed(running: int = 0, weights: PackedSize = WEIGHTS, **paths: object) -> int:
    return memory_needed(config(**paths), SPEC, weights, running)


def test_each_replica_has_a_cache_and_all_have_the_weights_between_them() -> None:
    one, two = (needed(workers__replicas=count, engine__kv_memory="100MiB") for count in (1, 2))
    assert one >= 1100 * MIB
    assert 100 * MIB <= two - one < 1000 * MIB


def test_replicas_that_are_added_count_alone() -> None:
    grow = {"workers__replicas": 3}
    assert needed(0, **grow) > needed(1, **grow) > needed(2, **grow) > needed(3, **grow) == 0
    assert needed(1, **grow) > 1000 * MIB > needed(2, **grow), "the first one's is its own"


def test_the_least_cache_is_smaller_in_int8() -> None:
    spec = tiny_spec(num_kv_heads=64, head_dim=256)
    block = {"engine__block_size": 256}
    float32, int8 = (
        memory_needed(config(**block), spec, weights)
        for weights in (PackedSize("float32", 0), PackedSize("int8", 0))
    )
    assert float32 - int8 == 256 * spec.kv_bytes_per_token(2)


def test_larger_steps_take_more() -> None:
    assert needed(engine__token_budget=2048) > needed()
    assert needed(engine__max_sequences=64) > needed()


def test_a_simulation_has_neither_weights_nor_cache() -> None:
    assert needed(engine__simulated_step_ms=1.0, engine__kv_memory="100GiB") < 1500 * MIB


def test_ranks_share_weights_and_cache_but_have_a_process_each() -> None:
    one, two = (
        needed(workers__tensor_parallel=ranks, engine__kv_memory="100MiB") for ranks in (1, 2)
    )
    assert 300 * MIB < two - one < 500 * MIB
