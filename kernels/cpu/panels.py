"""From matrices to the panels of 16 outputs that the C++ kernels read.

Owns the layout of packed matrices: ``panels.h`` draws the quantised ones. What one byte of a GGUF
block means is said here once for each encoding; weights keep their codes, and their scales exactly.

A quantised weight is ``scale × (code - offset) + minimum``. Scales of K-quants are products of two
numbers, short enough that float32 holds them without rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from chairlift.kernels.cpu.memory import Memory
from chairlift.kernels.interface import FLOAT
from chairlift.kernels.quantised import Quantised

__all__ = ["ENCODINGS", "form_of", "pack_floats", "pack_quantised"]

_LANES = 16  # outputs of a panel; as in vec.h and panels.h
_GROUP = 32
_LINE = 64

_Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Weights:
    """A matrix, group by group of 32 inputs.

    Attributes:
        codes: (outputs, groups, 16 or 32) bytes, as in ``panels.h``.
        scales: (outputs, groups, parts).
        minima: (outputs, groups, 1), if the encoding has any.
    """

    codes: NDArray[Any]
    scales: NDArray[Any]
    minima: NDArray[Any] | None = None


def _q4_0(blocks: _Bytes) -> _Weights:
    return _Weights(blocks[..., 2:], _halves(blocks[..., :2]))


def _q4_1(blocks: _Bytes) -> _Weights:
    return _Weights(blocks[..., 4:], _halves(blocks[..., :2]), _halves(blocks[..., 2:4]))


def _q5_0(blocks: _Bytes) -> _Weights:
    """The fifth bits stand apart: bit i of four bytes is that of input i."""
    fifth = np.unpackbits(np.ascontiguousarray(blocks[..., 2:6]), axis=-1, bitorder="little")
    low = blocks[..., 6:]
    codes = np.concatenate((low & 15, low >> 4), axis=-1) | fifth << 4
    return _Weights(codes + np.uint8(128 - 16), _halves(blocks[..., :2]))


def _q8_0(blocks: _Bytes) -> _Weights:
    return _Weights(blocks[..., 2:] ^ 128, _halves(blocks[..., :2]))


def _q4_k(blocks: _Bytes) -> _Weights:
    """Super-blocks of 256: eight groups, whose scales and minima are 6 bits wide."""
    outputs, count = blocks.shape[:2]
    packed = blocks[..., 4:16]
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate((first & 63, third & 15 | first >> 6 << 4), axis=-1)
    minima = np.concatenate((second & 63, third >> 4 | second >> 6 << 4), axis=-1)
    both = blocks[..., 16:].reshape(outputs, count, 4, 1, _GROUP)
    codes = np.concatenate((both & 15, both >> 4), axis=-2).reshape(outputs, -1, _GROUP)
    scale, minimum = (_halves(blocks[..., at : at + 2]).astype(np.float32) for at in (0, 2))
    return _Weights(
        codes[..., :16] | codes[..., 16:] << 4,
        (scale * scales).reshape(outputs, -1, 1),
        (-minimum * minima).reshape(outputs, -1, 1),
    )


def _q6_k(blocks: _Bytes) -> _Weights:
    """Super-blocks of 256: sixteen parts, each with a scale of 8 bits."""
    outputs, count = blocks.shape[:2]
    both = blocks[..., :128].reshape(outputs, count, 2, 2, _GROUP)
    high = blocks[..., 128:192].reshape(outputs, count, 2, 1, _GROUP)
    low = np.concatenate((both & 15, both >> 4), axis=-2)
    two = high >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    codes = (low | two << 4) + np.uint8(128 - 32)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    scale = _halves(blocks[..., 208:]).astype(np.float32)
    return _Weights(codes.reshape(outputs, -1, _GROUP), (scale * scales).reshape(outputs, -1, 2))


@dataclass(frozen=True, slots=True)
class _Encoding:
    """``form`` is the number that ``panels.h`` knows the panels by."""

    form: int
    block_bytes: int
    read: Callable[[_Bytes], _Weights]


ENCODINGS: Mapping[str, _Encoding] = {
    "Q4_0": _Encoding(0, 18, _q4_0),
    "Q4_1": _Encoding(1, 20, _q4_1),
    "Q4_K": _Encoding(2, 144, _q4_k),
    "Q5_0": _Encoding(3, 22, _q5_0),
    "Q8_0": _Encoding(3, 34, _q8_0),
    "Q6_K": _Encoding(4, 210, _q6_k),
}
"""GGUF's names of the encodings that there are panels for."""


def form_of(kind: str) -> int:
    """The number of the panels that hold this encoding; -1 for ``FLOAT``."""
    return -1 if kind == FLOAT else ENCODINGS[kind].form


def pack_floats(weight: Tensor, memory: Memory) -> Tensor:
    """(panels, inputs, 16), the last panel filled up with zeros."""
    outputs, inputs = weight.shape
    panels = -(-outputs // _LANES)
    packed = memory.zeros(panels, inputs, _LANES)
    missing = panels * _LANES - outputs
    padded = F.pad(weight, (0, 0, 0, missing)) if missing else weight
    packed.copy_(padded.view(panels, _LANES, inputs).transpose(1, 2))
    return packed


def pack_quantised(matrix: Quantised, memory: Memory) -> Tensor:
    """(panels, bytes) uint8, the last panel filled up with zeros."""
    encoding = ENCODINGS[matrix.kind]
    outputs = matrix.blocks.shape[0]
    weights = encoding.read(matrix.blocks.numpy().reshape(outputs, -1, encoding.block_bytes))
    parts = [
        np.ascontiguousarray(weights.codes).view(np.uint32),  # four inputs to a word
        weights.scales,
        *([] if weights.minima is None else [weights.minima]),
    ]
    panels = [_by_panel(part) for part in parts]
    size = sum(part.shape[1] for part in panels)
    packed = memory.zeros(len(panels[0]), -(-size // _LINE) * _LINE // 4).view(torch.uint8)
    start = 0
    for part in panels:
        packed[:, start : start + part.shape[1]] = torch.from_numpy(part)
        start += part.shape[1]
    return packed


def _halves(pairs: _Bytes) -> NDArray[np.float16]:
    return np.ascontiguousarray(pairs).view("<f2")


def _by_panel(part: NDArray[Any]) -> _Bytes:
    """(outputs, groups, n) to (panels, groups × n × 16 × bytes of an item)."""
    outputs, groups, items = part.shape
    panels = -(-outputs // _LANES)
    if outputs % _LANES:
        part = np.concatenate((part, np.zeros((-outputs % _LANES, groups, items), part.dtype)))
    by_panel = part.reshape(panels, _LANES, groups, items).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(by_panel).reshape(panels, -1).view(np.uint8)
