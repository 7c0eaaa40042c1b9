"""What this machine gives to this process: cores and memory, within the limits of its cgroup.

Owns the reading of Linux's files; elsewhere there are no cgroups and psutil's figures stand. Both
versions of cgroups are read, from the process's own group up to the outermost one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Cores", "Cpu", "Memory", "cpu_quota", "memory_limit", "read_cores", "read_cpu",
           "read_memory"]  # fmt: skip

_ROOT = Path("/")
_UNLIMITED = 1 << 60
"""Version 1 says "no limit" with a number about as large as fits."""


@dataclass(frozen=True, slots=True)
class Cpu:
    """The processor: its name, and its features as Linux lists them."""

    model: str
    features: frozenset[str]


@dataclass(frozen=True, slots=True)
class Cores:
    """Logical cores: of the machine, those that this process may run on, and its quota of them."""

    total: int
    allowed: int
    quota: float | None

    @property
    def usable(self) -> float:
        return self.allowed if self.quota is None else min(self.allowed, self.quota)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, within the cgroup's limit where there is one."""

    total: int
    available: int


def read_cpu(root: Path = _ROOT) -> Cpu:
    """Empty where the system does not tell."""
    fields: dict[str, str] = {}
    for line in _read(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    features = fields.get("flags") or fields.get("Features") or ""
    return Cpu(fields.get("model name", ""), frozenset(features.split()))


def read_cores(root: Path = _ROOT) -> Cores:
    total = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else total
    return Cores(total, allowed, cpu_quota(root))


def read_memory(root: Path = _ROOT) -> Memory:
    machine = psutil.virtual_memory()
    limit = memory_limit(root)
    if limit is None:
        return Memory(machine.total, machine.available)
    return Memory(min(machine.total, limit.total), min(machine.available, limit.available))


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Cores' worth of time that the tightest cgroup allows; None without a limit."""
    quotas = []
    for folder in _groups(root, "cpu"):
        words = _read(folder / "cpu.max").split() or [
            _read(folder / "cpu.cfs_quota_us").strip(),
            _read(folder / "cpu.cfs_period_us").strip(),
        ]
        if len(words) == 2 and all(word.isdigit() for word in words):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def memory_limit(root: Path = _ROOT) -> Memory | None:
    """The limit of the tightest cgroup and what is left in the fullest; None without a limit.

    File pages that the kernel can drop at once do not count as used.
    """
    limits = []
    for folder in _groups(root, "memory"):
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        used = _number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < _UNLIMITED:
            left = limit - used + _droppable(folder)
            limits.append(Memory(limit, max(0, min(left, limit))))
    if not limits:
        return None
    return Memory(min(each.total for each in limits), min(each.available for each in limits))


def _droppable(folder: Path) -> int:
    """Bytes of inactive file pages, of the group with all below it."""
    stat = dict(line.split(" ", 1) for line in _read(folder / "memory.stat").splitlines())
    value = stat.get("total_inactive_file") or stat.get("inactive_file") or "0"
    return int(value)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the process's cgroup and of those around it, innermost first."""
    base = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            top = base  # version 2
        elif controller in controllers.split(","):
            top = base / controller
        else:
            continue
        inner = top / path.lstrip("/")
        # In a container the path may name a group that is not visible: then the top is ours.
        while inner != top and top in inner.parents:
            yield inner
            inner = inner.parent
        yield top


def _number(folder: Path, *names: str) -> int | None:
    for name in names:
        text = _read(folder / name).strip()
        if text.isdigit():
            return int(text)
    return None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
