"""Models of known shapes with random weights, made where they compute.

Owns the shapes, the weights and the way from both to a runner. No file is read or written but a
configuration: gigabytes of numbers are drawn on the device faster than any disk brings them.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from chairlift.cluster.config import EngineConfig
from chairlift.cluster.errors import ConfigError, StartupError
from chairlift.cluster.model_files import read_spec, weight_shapes
from chairlift.cluster.model_spec import ModelSpec
from chairlift.workers.attention_rehearsal import rehearse_attention
from chairlift.workers.kernel_choice import (
    CpuKernelChoice,
    choose_device,
    choose_gpu_kernels,
    choose_kernels,
)
from chairlift.workers.model_loading import AnyRunner, make_device_runner
from chairlift.workers.model_runner import ModelRunner
from chairlift.workers.shards import share_of

__all__ = [
    "BLOCK_SIZE",
    "SHAPES",
    "SMALL_SHAPES",
    "RandomModel",
    "Spans",
    "Variant",
    "interprets",
    "make_model",
]

Spans = Sequence[tuple[int, int]]
"""Of each sequence of a step, tokens in the cache, and how many of them, the last, are computed."""

BLOCK_SIZE = 16
_SPREAD = 0.02
_GRAPHS = 256
_ROOM = 2.3
"""Times the weights: themselves, as packed, and something for the cache."""

_LLAMA = MappingProxyType(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "eos_token_id": 1,
        "max_position_embeddings": 16384,
    }
)
_QWEN = MappingProxyType(
    {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
        "max_position_embeddings": 40960,
    }
)


def _sizes(
    vocab: int, hidden: int, inner: int, layers: int, heads: tuple[int, int, int]
) -> dict[str, int]:
    """``heads``: of queries, of K and V, and the elements of one."""
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
    }


SHAPES: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "llama-3-8b": {**_LLAMA, **_sizes(128256, 4096, 14336, 32, (32, 8, 128))},
        "qwen3-0.6b": {**_QWEN, **_sizes(151936, 1024, 3072, 28, (16, 8, 128))},
    }
)
"""Configurations by name, as Hugging Face's files have them."""

SMALL_SHAPES: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "llama-3-8b": {**_LLAMA, **_sizes(256, 64, 128, 2, (4, 2, 16))},
        "qwen3-0.6b": {**_QWEN, **_sizes(256, 32, 64, 2, (4, 2, 16))},
    }
)
"""The same families in a few thousand weights, to try the report itself."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to compute; see ``cluster.config.EngineConfig``."""

    exact: bool
    graphs: bool
    attention: Literal["auto", "flash", "triton"] = "auto"

    def __str__(self) -> str:
        return f"{'exact' if self.exact else 'free'}, {'graphs' if self.graphs else 'no graphs'}"


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A model on a device.

    Attributes:
        config: as a file would have it.
        weights: by canonical name, on the device; those of Hugging Face, too, in these families.
        device: where all of it is.
        on_triton: the kernels for GPUs compute; else those for CPUs do.
    """

    name: str
    config: Mapping[str, object]
    spec: ModelSpec
    weights: Mapping[str, Tensor]
    device: torch.device
    on_triton: bool

    @property
    def dtype(self) -> torch.dtype:
        return self.weights["model.norm.weight"].dtype

    @property
    def parameters(self) -> int:
        """Weights that a token is multiplied with; of a table only a row is read."""
        weights = sum(each.numel() for each in self.weights.values())
        table = self.weights["model.embed_tokens.weight"].numel()
        return weights - (0 if self.spec.tied_embeddings else table)

    @property
    def layer_parameters(self) -> int:
        """Those without the head, which only rows that sample are multiplied with."""
        return self.parameters - self.spec.vocab_size * self.spec.hidden_size

    def step_bytes(self, sequences: int, context: int) -> int:
        """What a step must read in which so many sequences of this length decode."""
        size = self.dtype.itemsize
        cache = sequences * context * self.spec.kv_bytes_per_token(size)
        return self.parameters * size + cache

    def prompt_operations(self, start: int, count: int) -> int:
        """Of a chunk of a prompt: two for each weight and token, and those of attention."""
        seen = count * start + count * (count + 1) // 2
        spec = self.spec
        attention = 4 * seen * spec.num_heads * spec.head_dim * spec.num_layers
        head = 2 * spec.vocab_size * spec.hidden_size
        return 2 * self.layer_parameters * count + head + attention

    def blocks_that_fit(self, wanted: int) -> int:
        """That many, or as many as the device has room for beside one more copy of the weights."""
        if self.device.type != "cuda":
            return wanted
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        size = self.dtype.itemsize
        block = BLOCK_SIZE * self.spec.kv_bytes_per_token(size)
        packed = sum(each.nbytes for each in self.weights.values())
        return max(1, min(wanted, int((0.85 * free - packed) / block)))

    def open_runner(
        self, variant: Variant, blocks: int, *, block_size: int = BLOCK_SIZE
    ) -> AnyRunner:
        """A runner with a copy of the weights, warmed up.

        Raises:
            StartupError: there are no such kernels here.
        """
        weights: dict[str, Any] = dict(self.weights)
        runner: AnyRunner
        if self.on_triton:
            engine = self._engine(variant, block_size)
            runner = make_device_runner(self.spec, engine, weights, num_blocks=blocks)
        else:
            runner = ModelRunner(
                self.spec,
                weights,
                num_blocks=blocks,
                block_size=block_size,
                kernels=choose_kernels(_on_cpu(variant), torch.get_num_threads()),
            )
        runner.warm_up(lambda _share: None)
        return runner

    def rehearse_attention(self, variant: Variant, spans: Spans) -> Callable[[], None]:
        """Attention of one layer, once a call; see ``workers.attention_rehearsal``.

        Raises:
            StartupError: there are no such kernels here.
        """
        if self.on_triton:
            engine = self._engine(variant, BLOCK_SIZE)
            share = share_of(self.spec, 0, 1)
            kernels = choose_gpu_kernels(engine, self.spec, share, self.device)
        else:
            kernels = choose_kernels(_on_cpu(variant), torch.get_num_threads())
        return rehearse_attention(kernels, self.spec, BLOCK_SIZE, spans)

    def _engine(self, variant: Variant, block_size: int) -> EngineConfig:
        return EngineConfig(
            device="cuda" if self.device.type == "cuda" else "cpu",
            kernels="triton",
            exact=variant.exact,
            dtype="bfloat16" if self.dtype == torch.bfloat16 else "float32",
            attention=variant.attention,
            block_size=block_size,
            graph_sequences=_GRAPHS if variant.graphs else 0,
        )


def interprets() -> bool:
    """Whether the kernels for GPUs run here without one (``TRITON_INTERPRET=1``)."""
    try:
        choose_device(EngineConfig(device="cpu", kernels="triton"))
    except (ConfigError, StartupError):
        return False
    return True


def make_model(name: str, config: Mapping[str, object], device: torch.device) -> RandomModel:
    """The same numbers at each call on the same kind of device; bfloat16 on a GPU.

    Raises:
        StartupError: the device has no room for it.
    """
    spec = _spec_of(config)
    gpu = device.type == "cuda"
    dtype = torch.bfloat16 if gpu else torch.float32
    needed = _ROOM * sum(math.prod(shape) for shape in weight_shapes(spec).values())
    if gpu and torch.cuda.mem_get_info(device)[0] < needed * dtype.itemsize:
        raise StartupError(f"it needs {needed * dtype.itemsize / 1e9:.0f} GB of free memory")
    dice = torch.Generator(device).manual_seed(0)
    weights = {
        weight: _draw(shape, device, dtype, dice) for weight, shape in weight_shapes(spec).items()
    }
    return RandomModel(name, config, spec, weights, device, gpu or interprets())


def _draw(
    shape: tuple[int, ...], device: torch.device, dtype: torch.dtype, dice: torch.Generator
) -> Tensor:
    numbers = torch.empty(shape, device=device, dtype=dtype)
    if math.prod(shape) == shape[-1]:  # of a norm
        return numbers.fill_(1.0)
    return numbers.normal_(0.0, _SPREAD, generator=dice)


def _spec_of(config: Mapping[str, object]) -> ModelSpec:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
        return read_spec(path)


def _on_cpu(variant: Variant) -> CpuKernelChoice:
    return "auto" if variant.exact else "torch"
