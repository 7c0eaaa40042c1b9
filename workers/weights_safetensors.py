"""Weights from the safetensors files of a Hugging Face folder, whole or in shards.

Owns which file holds which tensor. Tensors are read when they are asked for, and of each only the
part that is.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from chairlift.cluster.errors import ModelError
from chairlift.cluster.families import StoredTensor, stored_tensor
from chairlift.cluster.folder_spec import read_json
from chairlift.cluster.model_files import weight_shapes
from chairlift.cluster.model_spec import ModelSpec
from chairlift.workers.shards import Cut

__all__ = ["SafetensorsWeights"]

_SUFFIX = ".safetensors"
_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = frozenset({"F32", "F16", "BF16"})
_UNUSED_SUFFIX = ".rotary_emb.inv_freq"
"""Buffers that old exports carry; the frequencies come from the configuration."""


class SafetensorsWeights:
    """The tensors of a folder, by canonical names.

    Raises:
        ModelError: on opening or reading, when a file or tensor is missing, damaged or of a type
            that is not supported.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._folder = folder = spec.path
        self._files: dict[str, Any] = {}
        if (folder / _WHOLE).is_file():
            self._where = dict.fromkeys(self._open(_WHOLE).keys(), _WHOLE)
        elif (folder / _INDEX).is_file():
            self._where = _read_index(folder / _INDEX)
        else:
            raise ModelError(f"{folder} has neither {_WHOLE} nor {_INDEX}; download it again")
        self._stored = {name: stored_tensor(spec, name) for name in weight_shapes(spec)}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        found = {
            name: self._shape(stored)
            for name, stored in self._stored.items()
            if stored.name in self._where
        }
        # What is left in the files goes by their names, for whoever wants to complain of it.
        used = {stored.name for stored in self._stored.values()}
        for name in self._where.keys() - used:
            if not name.endswith(_UNUSED_SUFFIX):
                found.setdefault(name, tuple(self._slice(name).get_shape()))
        return found

    def encodings(self) -> frozenset[str]:
        return frozenset()

    def read(self, name: str, cut: Cut | None = None, keep: Set[str] = frozenset()) -> torch.Tensor:
        stored = self._stored[name]
        slices = self._slice(stored.name)
        rows, columns = stored.first_row, slice(None)
        stop = rows + (stored.rows or self._shape(stored)[0])
        if cut is not None and cut.axis == 0:
            rows, stop = rows + cut.start, rows + cut.stop
        elif cut is not None:
            columns = slice(cut.start, cut.stop)
        at: tuple[slice | int, ...] = (slice(rows, stop),)
        if len(slices.get_shape()) > 1:
            at += (columns,)
        try:
            tensor: torch.Tensor = slices[at]
        except SafetensorError as error:
            raise _damaged(self._folder / self._where[stored.name], error) from None
        dtype = tensor.dtype if slices.get_dtype() in keep else torch.float32
        # A copy even of the same type: the file may be replaced while the model runs.
        return tensor.to(dtype, copy=True, memory_format=torch.contiguous_format)

    def _shape(self, stored: StoredTensor) -> tuple[int, ...]:
        """Of the part of a tensor that goes by a name of its own."""
        shape = tuple(self._slice(stored.name).get_shape())
        return shape if stored.rows is None else (stored.rows, *shape[1:])

    def _slice(self, name: str) -> Any:
        """What reads any part of a tensor, and nothing of the rest."""
        file = self._where[name]
        try:
            found = self._open(file).get_slice(name)
        except SafetensorError:
            raise ModelError(
                f"{self._folder / file} lacks the tensor {name!r}; download it again"
            ) from None
        if found.get_dtype() not in _DTYPES:
            raise ModelError(
                f"{self._folder / file}: the tensor {name!r} has the type {found.get_dtype()};"
                f" supported are {', '.join(sorted(_DTYPES))}"
            )
        return found

    def _open(self, name: str) -> Any:
        """The handle of one file; each is opened once."""
        if name not in self._files:
            path = self._folder / name
            try:
                self._files[name] = safe_open(path, framework="pt")
            except FileNotFoundError:
                raise ModelError(f"{path} is missing; download the model again") from None
            except (OSError, SafetensorError) as error:
                raise _damaged(path, error) from None
        return self._files[name]


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name → file name in the same folder."""
    where = read_json(path).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise ModelError(f"{path} has no weight_map; download it again")
    for name, file in where.items():
        # Only a name in this folder: the index may come from anywhere.
        if not isinstance(file, str) or Path(file).name != file or Path(file).suffix != _SUFFIX:
            raise ModelError(f"{path}: {file!r} for {name!r} is no file name; download it again")
    return where


def _damaged(path: Path, error: Exception) -> ModelError:
    return ModelError(f"{path} is damaged: {' '.join(str(error).split())}; download it again")
