"""All weights of a model, under one set of names, whatever the format.

Owns the check that the files hold exactly what the model needs. The two formats are read by
``workers.weights_gguf`` and ``workers.weights_safetensors``; what is done with the tensors is
``workers.decoder_weights``' affair. A rank reads its own part of each tensor, and nothing of the
rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from typing import Protocol

from chairlift.cluster.errors import ModelError
from chairlift.cluster.model_files import weight_shapes
from chairlift.cluster.model_spec import ModelFormat, ModelSpec
from chairlift.kernels.quantised import Matrix
from chairlift.workers.shards import Cut, Share, cut_of
from chairlift.workers.weights_gguf import GgufWeights
from chairlift.workers.weights_safetensors import SafetensorsWeights

__all__ = ["load_weights", "stored_encodings"]


class WeightSource(Protocol):
    """The tensors of one format, by canonical names."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of every tensor that the files hold, without reading it."""
        ...

    def encodings(self) -> frozenset[str]:
        """GGUF's names of those in which matrices are stored."""
        ...

    def read(self, name: str, cut: Cut | None = None, keep: Set[str] = frozenset()) -> Matrix:
        """One tensor or a part of it, contiguous, in memory of its own.

        In float32, unless it is a matrix whose encoding is one of ``keep``, and the part is one of
        whole blocks: then as it is.
        """
        ...


def stored_encodings(spec: ModelSpec) -> frozenset[str]:
    """GGUF's names of the encodings of the model's matrices; none for other formats.

    Raises:
        ModelError: a file is missing or damaged.
    """
    return _open(spec).encodings()


def load_weights(
    spec: ModelSpec,
    progress: Callable[[float], None],
    *,
    keep: Set[str] = frozenset(),
    share: Share | None = None,
) -> dict[str, Matrix]:
    """Read all weights, one tensor at a time.

    Beyond the result itself, memory holds at most one more tensor.

    Args:
        spec: from ``cluster.model_files.read_spec``.
        progress: told the finished share, in (0, 1], after each tensor.
        keep: encodings of matrices that are not decoded; ``F16`` and ``BF16`` are such, too.
        share: of the rank whose part is read; None for all.

    Returns:
        float32 tensors, and the matrices that were kept, or the rank's part of each; by the names
        of ``cluster.model_files.weight_shapes``. The rows of the query and key projections are in
        Hugging Face's order: the two elements of a rotated pair stand half a head apart.

    Raises:
        ModelError: a file or tensor is missing, damaged, of another shape than the model needs,
            or there are tensors that the model has no use for.
    """
    source = _open(spec)
    expected = weight_shapes(spec)
    _check(spec, source.shapes(), expected)
    total = sum(math.prod(shape) for shape in expected.values())
    weights: dict[str, Matrix] = {}
    done = 0
    for name, shape in expected.items():
        weights[name] = source.read(name, cut_of(spec, share, name), keep)
        done += math.prod(shape)
        progress(done / total)
    return weights


def _open(spec: ModelSpec) -> WeightSource:
    if spec.format is ModelFormat.GGUF:
        return GgufWeights(spec)
    return SafetensorsWeights(spec)


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
        if name not in expected and "model.layers." in name:
            raise ModelError(
                f"{spec.path}: a model of its kind has no tensor {name!r}; Chairlift cannot run it"
            )
