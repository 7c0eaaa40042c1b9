"""All weights of a model as float32 tensors, under one set of names, whatever the format.

Owns the check that the files hold exactly what the model needs. The two formats are read by
``workers.weights_gguf`` and ``workers.weights_safetensors``; what is done with the tensors is
``workers.llama``'s affair.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from chairlift.cluster.errors import ModelError
from chairlift.cluster.model_files import weight_shapes
from chairlift.cluster.model_spec import ModelFormat, ModelSpec
from chairlift.workers.weights_gguf import GgufWeights
from chairlift.workers.weights_safetensors import SafetensorsWeights

__all__ = ["load_weights"]


class WeightSource(Protocol):
    """The tensors of one format, by canonical names."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of every tensor that the files hold, without reading it."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """One tensor: float32, contiguous, in memory of its own."""
        ...


def load_weights(spec: ModelSpec, progress: Callable[[float], None]) -> dict[str, torch.Tensor]:
    """Read all weights, one tensor at a time.

    Beyond the result itself, memory holds at most one more tensor.

    Args:
        spec: from ``cluster.model_files.read_spec``.
        progress: told the finished share, in (0, 1], after each tensor.

    Returns:
        float32 tensors by the names of ``cluster.model_files.weight_shapes``. The rows of the
        query and key projections are in Hugging Face's order: the two elements of a rotated
        pair stand half a head apart.

    Raises:
        ModelError: a file or tensor is missing, damaged, of another shape than the model needs,
            or there are tensors that the model has no use for.
    """
    source = _open(spec)
    expected = weight_shapes(spec)
    _check(spec, source.shapes(), expected)
    total = sum(math.prod(shape) for shape in expected.values())
    weights: dict[str, torch.Tensor] = {}
    done = 0
    for name, shape in expected.items():
        weights[name] = source.read(name)
        done += math.prod(shape)
        progress(done / total)
    return weights


def _open(spec: ModelSpec) -> WeightSource:
    if spec.format is ModelFormat.GGUF:
        return GgufWeights(spec)
    return SafetensorsWeights(spec.path)


def _check(
    spec: ModelSpec,
    found: Mapping[str, tuple[int, ...]],
    expected: Mapping[str, tuple[int, ...]],
) -> None:
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(f"{spec.path} lacks the tensor {name}; download it again")
        if found[name] != shape:
            raise ModelError(
                f"{spec.path}: the tensor {name} has the shape {found[name]}, expected {shape};"
                " download it again"
            )
    for name in found:
        # Leaving out a bias or a norm that the model was trained with gives wrong text, silently.
        if name not in expected and name.startswith("model.layers."):
            raise ModelError(
                f"{spec.path}: a model of its kind has no tensor {name!r}; Chairlift cannot run it"
            )
