"""What a model's weights take once they are packed, before anybody packs them.

Owns what ``engine.cpu_math`` comes to with a model, as far as its files tell. Imports no torch: it
is asked before a service starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from chairlift.cluster.config import EngineConfig
from chairlift.cluster.errors import ConfigError
from chairlift.cluster.gguf_file import GgufFile
from chairlift.cluster.model_files import weight_bytes
from chairlift.cluster.model_spec import ModelFormat, ModelSpec
from chairlift.kernels.encodings import PACKED_BYTES

__all__ = ["PackedSize", "packed_size"]

_FLOAT = 4
_GROUP = 32
"""Weights that ``PACKED_BYTES`` counts together."""
_MATRIX = 2
"""Dimensions."""


@dataclass(frozen=True, slots=True)
class PackedSize:
    """How linear layers are computed, and the bytes that one copy of all weights takes."""

    math: Literal["float32", "int8"]
    size: int

    @property
    def cache_number(self) -> int:
        """Bytes of a number in the KV cache."""
        return 2 if self.math == "int8" else _FLOAT


def packed_size(engine: EngineConfig, spec: ModelSpec) -> PackedSize:
    """What ``engine.cpu_math`` comes to with this model.

    Where there is no C++ compiler, ``auto`` becomes ``float32`` only later.

    Raises:
        ConfigError: ``int8`` cannot be had.
        ModelError: the file is damaged.
    """
    size = _quantised(spec) if engine.cpu_math != "float32" else None
    if size is not None and engine.kernels != "torch":
        return PackedSize("int8", size)
    if engine.cpu_math == "int8":
        needed = ", ".join(sorted(PACKED_BYTES))
        lacks = f"{spec.path} is no GGUF file with {needed}" if size is None else "no C++ kernels"
        raise ConfigError(f"engine.cpu_math: {lacks}; choose auto or float32")
    return PackedSize("float32", weight_bytes(spec))


def _quantised(spec: ModelSpec) -> int | None:
    """Bytes with all left quantised that can be; None if nothing can."""
    if spec.format is not ModelFormat.GGUF:
        return None
    found, size = False, 0
    for tensor in GgufFile.open(spec.path).tensors.values():
        count = math.prod(tensor.shape)
        if tensor.type_name in PACKED_BYTES and len(tensor.shape) == _MATRIX:
            found = True
            size += count // _GROUP * PACKED_BYTES[tensor.type_name]
        else:
            size += count * _FLOAT
    return size if found else None
