"""From a model's files to a runner that is ready: weights, KV cache, warm-up.

Owns the order in which memory is taken. It imports torch, which takes seconds and hundreds of
megabytes, so it is imported only by who is about to compute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from chairlift.cluster.config import EngineConfig, ServiceConfig, cache_folder
from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.cpu.cpp_kernels import CppKernels
from chairlift.kernels.interface import Kernels
from chairlift.kernels.quantised import Matrix
from chairlift.workers.decoder_weights import pack_weights
from chairlift.workers.device_runner import DeviceCache, DeviceRunner
from chairlift.workers.gpu_memory import gpu_blocks, step_bytes
from chairlift.workers.kernel_choice import (
    KernelChoice,
    MathChoice,
    choose_device,
    choose_encodings,
    choose_gpu_kernels,
    choose_kernels,
)
from chairlift.workers.machine_share import cache_blocks, worker_threads
from chairlift.workers.model_runner import ModelRunner, cache_type
from chairlift.workers.packed_weights import PackedCache
from chairlift.workers.shards import share_of
from chairlift.workers.tensor_parallel import Alone, Group
from chairlift.workers.weights import load_weights

__all__ = ["AnyRunner", "Compute", "load_runner", "make_device_runner", "make_runner"]

AnyRunner = ModelRunner | DeviceRunner

_LOGGER = logging.getLogger(__name__)

_HALVES = frozenset(("F16", "BF16"))
_MOST_INTERPRETED = 1024**3
"""Bytes; nobody waits for more without a GPU."""


@dataclass(frozen=True, slots=True)
class Compute:
    """With what a model is computed; see ``cluster.config.EngineConfig``.

    On a CPU, unless ``kernels`` are ``triton``.
    """

    kernels: KernelChoice = "auto"
    math: MathChoice = "float32"
    threads: int = 1


def load_runner(
    config: ServiceConfig,
    spec: ModelSpec,
    report: Callable[[str], Callable[[float], None]],
    group: Group,
) -> tuple[AnyRunner, int]:
    """The runner, and the blocks of its KV cache.

    The ranks of a group call this at the same time; all get the same number of blocks.

    Args:
        config: the service.
        spec: the model.
        report: name of a stage → who is told the done share of it.
        group: the ranks that compute the model together.

    Raises:
        StartupError: files, memory or kernels are not as they must be.
    """
    threads = worker_threads(config)
    torch.set_num_threads(threads)
    device = choose_device(config.engine, group.rank)
    if device.type == "cuda" or config.engine.kernels == "triton":
        return _load_device_runner(config.engine, spec, device, report, group)
    return _load_cpu_runner(config, spec, threads, report, group)


def _load_cpu_runner(
    config: ServiceConfig,
    spec: ModelSpec,
    threads: int,
    report: Callable[[str], Callable[[float], None]],
    group: Group,
) -> tuple[ModelRunner, int]:
    engine = config.engine
    assert engine.kernels != "triton"
    kernels = choose_kernels(engine.kernels, threads)
    keep = choose_encodings(engine.cpu_math, kernels, spec)
    _LOGGER.info("computing linear layers in %s", "int8" if keep else "float32")
    share = share_of(spec, group.rank, group.size)
    weights = PackedCache(cache_folder() / "weights").load(
        spec, kernels, keep, report("reading weights"), share, shared=config.workers.most > 1
    )
    # Only now, of what the weights have left.
    num_blocks = cache_blocks(config, spec, cache_type(kernels, weights).itemsize)
    num_blocks = _least(num_blocks, group)
    runner = ModelRunner(
        spec,
        weights,
        num_blocks=num_blocks,
        block_size=engine.block_size,
        kernels=kernels,
        group=group,
    )
    _spare_threads(kernels)
    runner.warm_up(report("warming up"))
    return runner, num_blocks


def _load_device_runner(
    engine: EngineConfig,
    spec: ModelSpec,
    device: torch.device,
    report: Callable[[str], Callable[[float], None]],
    group: Group,
) -> tuple[DeviceRunner, int]:
    # Larger steps in which everybody decodes are not to come.
    graphs = min(engine.graph_sequences, engine.max_sequences)
    engine = engine.model_copy(update={"graph_sequences": graphs})
    share = share_of(spec, group.rank, group.size)
    kernels = choose_gpu_kernels(engine, spec, share, device)
    weights = pack_weights(
        spec,
        load_weights(spec, report("reading weights"), keep=_HALVES, share=share),
        kernels,
        rank=group.rank,
    )
    cache = _device_cache(engine, kernels, num_blocks=0)
    # Only now, of what the weights have left.
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _MOST_INTERPRETED
    num_blocks = gpu_blocks(
        engine,
        spec,
        share,
        available=free - step_bytes(engine, spec, share, kernels.dtype.itemsize),
        element_size=cache.dtype.itemsize,
        extra=cache.num_extra,
    )
    num_blocks = _least(num_blocks, group)
    cache = _device_cache(engine, kernels, num_blocks=num_blocks)
    runner = DeviceRunner(spec, weights, cache, kernels, group)
    runner.warm_up(report("warming up"))
    return runner, num_blocks


def _device_cache(engine: EngineConfig, kernels: Kernels, *, num_blocks: int) -> DeviceCache:
    dtype = kernels.dtype if engine.kv_type == "auto" else torch.float8_e4m3fn
    return DeviceCache(num_blocks, engine.block_size, dtype, engine.graph_sequences)


def _least(number: int, group: Group) -> int:
    """Of what each rank has."""
    if group.size == 1:
        return number
    numbers = torch.empty(1, group.size)
    group.gather(torch.tensor([[float(number)]]), numbers)  # exact up to 2²⁴
    return int(numbers.min())


def make_runner(
    spec: ModelSpec,
    compute: Compute,
    *,
    num_blocks: int,
    block_size: int,
    group: Group | None = None,
) -> AnyRunner:
    """A runner for who wants no service around it, before its warm-up.

    With a ``group``, that of one of its ranks.

    Raises:
        StartupError: files or kernels are not as they must be.
    """
    if compute.kernels == "triton":
        engine = EngineConfig(kernels="triton", block_size=block_size)
        share = share_of(spec, group.rank, group.size) if group else None
        weights = load_weights(spec, lambda _share: None, keep=_HALVES, share=share)
        return make_device_runner(spec, engine, weights, num_blocks=num_blocks, group=group)
    kernels = choose_kernels(compute.kernels, compute.threads)
    keep = choose_encodings(compute.math, kernels, spec)
    group = group or Alone()
    share = share_of(spec, group.rank, group.size)
    weights = load_weights(spec, lambda _share: None, keep=keep, share=share)
    _spare_threads(kernels)
    return ModelRunner(
        spec,
        weights,
        num_blocks=num_blocks,
        block_size=block_size,
        kernels=kernels,
        group=group,
    )


def make_device_runner(
    spec: ModelSpec,
    engine: EngineConfig,
    weights: dict[str, Matrix],
    *,
    num_blocks: int,
    group: Group | None = None,
) -> DeviceRunner:
    """A runner on a GPU, of weights by canonical name, which are taken out; before its warm-up.

    Raises:
        StartupError: kernels or GPU are not as they must be.
    """
    group = group or Alone()
    device = choose_device(engine, group.rank)
    kernels = choose_gpu_kernels(engine, spec, share_of(spec, group.rank, group.size), device)
    packed = pack_weights(spec, weights, kernels, rank=group.rank)
    cache = _device_cache(engine, kernels, num_blocks=num_blocks)
    return DeviceRunner(spec, packed, cache, kernels, group)


def _spare_threads(kernels: Kernels) -> None:
    """Leave the cores to the kernels, if these have threads of their own.

    Those of torch look for work for a while after each of its operations, however small: on two
    cores that took a tenth of the time of 32 sequences and a quarter of that of eight.
    """
    if isinstance(kernels, CppKernels):
        torch.set_num_threads(1)
