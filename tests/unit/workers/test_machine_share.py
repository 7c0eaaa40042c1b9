"""What a machine has is shared by all workers on it."""

import pytest

from chairlift.cluster.config import ServiceConfig, load_config
from chairlift.cluster.machine import read_cores
from chairlift.workers.machine_share import cache_blocks, worker_threads
from support.llama_models import tiny_spec

MIB = 1024**2


def config(**paths: object) -> ServiceConfig:
    flags = {name.replace("__", "."): value for name, value in paths.items()}
    return load_config(overrides=flags, environment={})


@pytest.mark.parametrize("many", [{"workers__replicas": 64}, {"workers__tensor_parallel": 640}])
def test_replicas_and_ranks_share_the_cores(many: dict[str, object]) -> None:
    assert worker_threads(config()) == max(1, int(read_cores().usable))
    assert worker_threads(config(**many)) == max(1, int(read_cores().usable) // 640)
    assert worker_threads(config(workers__threads=3, **many)) == 3


def test_the_ranks_of_a_replica_have_its_cache_between_them() -> None:
    spec = tiny_spec(num_heads=4, num_kv_heads=2)
    memory = {"engine__kv_memory": 64 * MIB}
    alone = cache_blocks(config(**memory), spec)
    assert alone == 64 * MIB // (16 * spec.kv_bytes_per_token(4))
    assert cache_blocks(config(workers__tensor_parallel=2, **memory), spec) == alone
    # Two of these four hold the same head.
    assert cache_blocks(config(workers__tensor_parallel=4, **memory), spec) == alone // 2
