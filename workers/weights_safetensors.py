"""Weights from the safetensors files of a Hugging Face folder, whole or in shards.

Owns which file holds which tensor. Tensors are read when they are asked for.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from chairlift.cluster.errors import ModelError
from chairlift.cluster.folder_spec import read_json

__all__ = ["SafetensorsWeights"]

_SUFFIX = ".safetensors"
_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = frozenset({"F32", "F16", "BF16"})
_UNUSED_SUFFIX = ".rotary_emb.inv_freq"
"""Buffers that old exports carry; the frequencies come from the configuration."""


class SafetensorsWeights:
    """The tensors of a folder, under the names in its files.

    Raises:
        ModelError: on opening or reading, when a file or tensor is missing, damaged or of a type
            that is not supported.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        if (folder / _WHOLE).is_file():
            self._where = dict.fromkeys(self._open(_WHOLE).keys(), _WHOLE)
        elif (folder / _INDEX).is_file():
            self._where = _read_index(folder / _INDEX)
        else:
            raise ModelError(f"{folder} has neither {_WHOLE} nor {_INDEX}; download it again")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            name: self._shape(name) for name in self._where if not name.endswith(_UNUSED_SUFFIX)
        }

    def encodings(self) -> frozenset[str]:
        return frozenset()

    def read(self, name: str, keep: Set[str] = frozenset()) -> torch.Tensor:
        file = self._where[name]
        try:
            tensor: torch.Tensor = self._open(file).get_tensor(name)
        except SafetensorError as error:
            raise _damaged(self._folder / file, error) from None
        # A copy even of float32: the file may be replaced while the model runs.
        return tensor.to(torch.float32, copy=True)

    def _shape(self, name: str) -> tuple[int, ...]:
        file = self._where[name]
        try:
            tensor = self._open(file).get_slice(name)
        except SafetensorError:
            raise ModelError(
                f"{self._folder / file} lacks the tensor {name!r}; download it again"
            ) from None
        if tensor.get_dtype() not in _DTYPES:
            raise ModelError(
                f"{self._folder / file}: the tensor {name!r} has the type {tensor.get_dtype()};"
                f" supported are {', '.join(sorted(_DTYPES))}"
            )
        return tuple(tensor.get_shape())

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
