"""Ranks get a bundle each, close together where they fit, and each a GPU if it computes on one."""

import pytest

from chairlift.cluster.config import ServiceConfig, load_config
from chairlift.cluster.errors import ConfigError
from chairlift.deployments.placement import check_gpus, place


def config(**paths: object) -> ServiceConfig:
    flags = {name.replace("__", "."): value for name, value in paths.items()}
    return load_config(overrides={"workers.tensor_parallel": 2} | flags, environment={})


def test_ranks_on_cpus_share_a_node() -> None:
    placed = place(config(), [0, 0])
    assert placed.strategy == "STRICT_PACK"
    assert len(placed.bundles) == 2 and all("GPU" not in bundle for bundle in placed.bundles)


def test_ranks_that_talk_over_the_network_go_to_several_nodes() -> None:
    assert place(config(workers__transport="gloo"), [0, 0]).strategy == "SPREAD"


def test_gpus_are_asked_for_before_a_node_has_any_where_nothing_else_will_do() -> None:
    placed = place(config(engine__device="cuda"), [0])
    assert [bundle["GPU"] for bundle in placed.bundles] == [1.0, 1.0]
    assert placed.strategy == "PACK"


@pytest.mark.parametrize("gpus", [0, 2])
def test_each_rank_takes_what_its_node_is_to_have(gpus: int) -> None:
    placed = place(config(workers__resources={"big_node": 1}), [gpus])
    assert [bundle["big_node"] for bundle in placed.bundles] == [1.0, 1.0]


@pytest.mark.parametrize("name", ["CPU", "GPU", "memory", "no-dash", ""])
def test_what_ray_counts_itself_is_no_name_for_it(name: str) -> None:
    with pytest.raises(ConfigError, match=r"workers\.resources"):
        config(workers__resources={name: 1})


def test_ranks_take_a_gpu_each_and_are_apart_only_where_no_node_has_enough() -> None:
    assert [bundle["GPU"] for bundle in place(config(), [1, 4]).bundles] == [1.0, 1.0]
    assert place(config(), [1, 4]).strategy == "STRICT_PACK"
    assert place(config(), [1, 1]).strategy == "PACK"


@pytest.mark.parametrize(
    "setting",
    [
        {"engine__device": "cpu"},
        {"engine__kernels": "cpp"},
        {"engine__simulated_step_ms": 1.0},
    ],
    ids=str,
)
def test_what_computes_on_the_cpu_takes_no_gpu(setting: dict[str, object]) -> None:
    placed = place(config(**setting), [8])
    assert all("GPU" not in bundle for bundle in placed.bundles)
    check_gpus(config(**setting), 1)


def test_fewer_gpus_than_ranks_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"need 4 GPUs.* are 2; .*--tensor-parallel"):
        check_gpus(config(workers__replicas=2), 2)
    with pytest.raises(ConfigError, match=r"need 2 GPUs, of which there are 0"):
        check_gpus(config(engine__device="cuda"), 0)
    check_gpus(config(workers__replicas=2), 4)
    check_gpus(config(), 0)  # on the CPU, then
