from __future__ import annotations

from pathlib import Path

import pytest

from chairlift.cluster.machine import (
    Cores,
    Memory,
    cpu_quota,
    memory_limit,
    read_cores,
    read_cpu,
    read_memory,
)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


def test_version_2_limits_of_the_own_group(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/app\n",
            "sys/fs/cgroup/app/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/app/memory.max": "1000\n",
            "sys/fs/cgroup/app/memory.current": "700\n",
            "sys/fs/cgroup/app/memory.stat": "anon 500\ninactive_file 150\n",
        },
    )
    assert cpu_quota(root) == 1.5
    assert memory_limit(root) == Memory(total=1000, available=450)


def test_the_tightest_of_the_groups_around_counts(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/outer/memory.max": "900\n",
            "sys/fs/cgroup/outer/memory.current": "100\n",
            "sys/fs/cgroup/outer/inner/cpu.max": "max 100000\n",
            "sys/fs/cgroup/outer/inner/memory.max": "max\n",
            "sys/fs/cgroup/outer/inner/memory.current": "50\n",
        },
    )
    assert cpu_quota(root) == 2.0
    assert memory_limit(root) == Memory(total=900, available=800)


def test_version_1_limits(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/job\n4:cpu,cpuacct:/job\n0::/\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "400\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "5000\n",
        },
    )
    assert cpu_quota(root) == 0.5
    assert memory_limit(root) == Memory(total=1000, available=600)


def test_a_group_that_a_container_cannot_see_falls_back_to_the_top(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/docker/abc\n",
            "sys/fs/cgroup/cpu.max": "100000 100000\n",
            "sys/fs/cgroup/memory.max": "100\n",
            "sys/fs/cgroup/memory.current": "400\n",
        },
    )
    assert cpu_quota(root) == 1.0
    assert memory_limit(root) == Memory(total=100, available=0)


def test_without_cgroups_there_is_no_limit(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert memory_limit(tmp_path) is None
    memory = read_memory(tmp_path)
    assert 0 < memory.available <= memory.total


def test_memory_is_the_smaller_of_machine_and_limit(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "4096\n",
            "sys/fs/cgroup/memory.current": "96\n",
        },
    )
    assert read_memory(root) == Memory(total=4096, available=4000)


def test_processor_and_features(tmp_path: Path) -> None:
    text = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2\n\nmodel name\t: Other\n"
    cpu = read_cpu(tree(tmp_path, {"proc/cpuinfo": text}))
    assert (cpu.model, cpu.features) == ("Some CPU", {"fpu", "avx2"})


def test_an_arm_processor_lists_its_features_under_another_name(tmp_path: Path) -> None:
    cpu = read_cpu(tree(tmp_path, {"proc/cpuinfo": "Features\t: fp asimd\n"}))
    assert cpu.features == {"fp", "asimd"}


@pytest.mark.parametrize(("quota", "usable"), [(None, 4), (1.5, 1.5), (9.0, 4)])
def test_usable_cores(quota: float | None, usable: float) -> None:
    assert Cores(total=8, allowed=4, quota=quota).usable == usable


def test_this_machine_has_a_core(tmp_path: Path) -> None:
    cores = read_cores(tmp_path)
    assert 1 <= cores.allowed <= cores.total and cores.quota is None
