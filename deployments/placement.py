"""Where the workers of one replica go: a bundle a rank, together on one node where they fit.

Owns what is asked of Ray for a replica, and the count of GPUs that decides it; Ray itself is not
asked here.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from chairlift.cluster.config import ServiceConfig
from chairlift.cluster.errors import ConfigError

__all__ = ["Placement", "check_gpus", "count_gpus", "place", "wants_gpus"]

# What a worker computes with is its own affair (``workers.threads``); to Ray it counts next to
# nothing, so that any number of them can be added while the service runs.
WORKER_CPUS = 0.01
_LIST_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Placement:
    """What Ray is asked for: resources of each rank's bundle, and how close they must be."""

    bundles: list[dict[str, float]]
    strategy: str


def wants_gpus(config: ServiceConfig) -> bool:
    """Whether workers take GPUs where there are some."""
    engine = config.engine
    if engine.simulated_step_ms is not None or engine.device == "cpu":
        return False
    return engine.device == "cuda" or engine.kernels in ("auto", "triton")


def place(config: ServiceConfig, gpus: Sequence[int]) -> Placement:
    """Bundles and strategy for one replica.

    Args:
        config: with ``engine.device: cuda`` they are asked for also while no node has any, for a
            cluster may grow by what it is asked for.
        gpus: how many each node has.
    """
    ranks, bundle = config.workers.tensor_parallel, {"CPU": WORKER_CPUS, **config.workers.resources}
    if wants_gpus(config) and (any(gpus) or config.engine.device == "cuda"):
        bundle["GPU"] = 1.0
        fits = max(gpus, default=0) >= ranks
        return Placement([bundle] * ranks, "STRICT_PACK" if fits else "PACK")
    # Whoever asks for gloo on CPUs wants the cores and the memory of several nodes.
    strategy = "SPREAD" if config.workers.transport == "gloo" else "STRICT_PACK"
    return Placement([bundle] * ranks, strategy)


def check_gpus(config: ServiceConfig, gpus: int) -> None:
    """Raises ConfigError when there are fewer GPUs than workers that take one each."""
    workers = config.workers
    needed = workers.most * workers.tensor_parallel
    if not wants_gpus(config) or gpus >= needed or (gpus == 0 and config.engine.device == "auto"):
        return
    raise ConfigError(
        f"{workers.most} replica(s) of {workers.tensor_parallel} rank(s) need {needed} GPUs, "
        f"of which there are {gpus}; use a smaller --tensor-parallel, fewer --replicas, "
        "or engine.device: cpu"
    )


def count_gpus() -> int:
    """GPUs of this machine, as NVIDIA's driver lists them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        listed = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=_LIST_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
