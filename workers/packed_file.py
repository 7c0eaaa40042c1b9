"""A model's packed weights in one file, to be mapped or read as a whole.

Owns the bytes: an index that is checked, then the tensors, each from the start of a cache line.
It does not know where the file is, nor when it is out of date (``workers.packed_weights``).

    "CHPACKED" | size of the file u64 | size of the index u64 | CRC-32 of the index u32 | index
    | pad to a page | tensors

The index is a pickle of ``DecoderWeights`` in which each tensor is replaced by where it lies.
Nothing is unpickled but the types that such weights consist of.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle  # nosec B403  # read by an Unpickler of the types that it consists of
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from chairlift.kernels.cpu.memory import advise_large_pages, large_pages
from chairlift.kernels.interface import DecoderLayer, Experts, GatedMlp, Packed, Part
from chairlift.workers.decoder_weights import DecoderWeights

__all__ = ["PackedFileDamaged", "read_packed", "write_packed"]

_MAGIC = b"CHPACKED"
_HEAD = struct.Struct("<8sQQI")
_PAGE = 4096
_LINE = 64
_TYPES = {
    each.__name__: each for each in (DecoderWeights, DecoderLayer, Experts, GatedMlp, Packed, Part)
}

_Place = tuple[str, tuple[int, ...], int]
"""Type, shape and offset of a tensor, from where the tensors begin."""


class PackedFileDamaged(Exception):
    """The file is no such file, or not the whole of it."""


def write_packed(file: Path, weights: DecoderWeights) -> None:
    """Put the whole file in place in one step.

    Any number of processes may do this at once; the last one's stays.

    Raises:
        OSError: there is no room, or no permission.
    """
    index = io.BytesIO()
    pickler = _Pickler(index)
    pickler.dump(weights)
    begin = -(-(_HEAD.size + index.tell()) // _PAGE) * _PAGE
    size = begin + pickler.size
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f"{file.name}.", delete=False) as new:
        try:
            os.posix_fallocate(new.fileno(), 0, size)  # a full disk says so now
            crc = zlib.crc32(index.getvalue())
            new.write(_HEAD.pack(_MAGIC, size, index.tell(), crc) + index.getvalue())
            for tensor, offset in pickler.tensors:
                new.seek(begin + offset)
                new.write(tensor.numpy().view(np.uint8).data)
            new.flush()
            os.fsync(new.fileno())  # or a machine that stops may leave a file of zeros
            os.replace(new.name, file)
        except BaseException:
            os.unlink(new.name)
            raise


def read_packed(file: Path, *, shared: bool) -> DecoderWeights:
    """The weights as they were written.

    Args:
        file: what ``write_packed`` has written.
        shared: map the file, so that all processes that do so have one copy of it between them;
            else read it into memory of large pages, which files do not have everywhere.

    Raises:
        OSError: it is not there, or cannot be read.
        PackedFileDamaged: it is there, and not what it should be.
    """
    with file.open("rb") as opened:
        index, begin = _read_index(opened)
        data = _map(opened) if shared else _read(opened)
    try:
        weights = _Unpickler(index, data[begin:]).load()
    except (pickle.UnpicklingError, TypeError, ValueError, EOFError) as error:
        raise PackedFileDamaged(f"{file}: {error}") from None
    if not isinstance(weights, DecoderWeights):
        raise PackedFileDamaged(f"{file}: no weights")
    return weights


def _read_index(file: io.BufferedReader) -> tuple[io.BytesIO, int]:
    """The index, and where the tensors begin."""
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        raise PackedFileDamaged(f"{file.name}: no packed weights")
    _, size, length, crc = _HEAD.unpack(head)
    found = os.fstat(file.fileno()).st_size
    if found != size:
        raise PackedFileDamaged(f"{file.name}: {found} bytes of {size}")
    index = file.read(length)
    if zlib.crc32(index) != crc:
        raise PackedFileDamaged(f"{file.name}: its index is damaged")
    return io.BytesIO(index), -(-(_HEAD.size + length) // _PAGE) * _PAGE


def _map(file: io.BufferedReader) -> NDArray[np.uint8]:
    """Pages that nobody writes to are those of all who map the file."""
    pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    advise_large_pages(pages)
    return np.frombuffer(pages, np.uint8)


def _read(file: io.BufferedReader) -> NDArray[np.uint8]:
    size = os.fstat(file.fileno()).st_size
    data = large_pages(size)[:size]
    file.seek(0)
    if file.readinto(data.data) != size:
        raise PackedFileDamaged(f"{file.name}: it has become shorter")
    return data


class _Pickler(pickle.Pickler):
    """Notes tensors, and where each is to lie."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[tuple[Tensor, int]] = []
        self.size = 0

    def persistent_id(self, value: Any) -> _Place | None:
        if not isinstance(value, Tensor):
            return None
        tensor, offset = value.contiguous(), self.size
        self.tensors.append((tensor, offset))
        self.size += -(-tensor.nbytes // _LINE) * _LINE
        return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, data: NDArray[np.uint8]) -> None:
        super().__init__(file)
        self._data = data

    def persistent_load(self, place: Any) -> Tensor:
        name, shape, offset = place
        dtype = getattr(torch, name)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        piece = self._data[offset : offset + size]
        return torch.from_numpy(piece).view(dtype).view(shape)

    def find_class(self, module: str, name: str) -> Any:
        if name not in _TYPES:
            raise pickle.UnpicklingError(f"unexpected type {name!r}")
        return _TYPES[name]
