"""The runner of a GPU, on this CPU: the same calls, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from chairlift.cluster.model_spec import ModelSpec
from chairlift.kernels.interface import Kernels
from chairlift.workers.decoder_weights import pack_weights
from chairlift.workers.device_runner import DeviceCache, DeviceRunner
from support.cpp_kernels import make_kernels
from support.llama_models import random_weights


def make_device_runner(
    spec: ModelSpec,
    *,
    kernels: Kernels | None = None,
    dtype: torch.dtype = torch.float32,
    warm_up: Callable[[float], None] | None = lambda share: None,
    **cache: Any,
) -> DeviceRunner:
    """Warmed up, for without that it has no graphs; ``cache`` are fields of ``DeviceCache``."""
    kernels = kernels or make_kernels()
    weights = pack_weights(spec, dict(random_weights(spec)), kernels)
    runner = DeviceRunner(spec, weights, DeviceCache(dtype=dtype, **cache), kernels)
    if warm_up is not None:
        runner.warm_up(warm_up)
    return runner
