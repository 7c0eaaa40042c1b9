"""The GGUF container: header, metadata and tensor table, believed only as far as the file reaches.

Owns the byte layout. It does not know what the metadata mean (``cluster.gguf_spec``) or how a
quantised tensor becomes numbers (``workers.weights_gguf``).

    "GGUF" | version u32 | tensor count u64 | key count u64 | key-values | tensor table | pad | data
            key-value:  key | type u32 | value          string: length u64 | UTF-8
            table row:  name | rank u32 | dims u64 … | type u32 | offset into data u64

Names and sizes of the types come from the ``gguf`` package. Its reader is not used: it turns each
string of the vocabulary into numpy arrays, which takes seconds; and it trusts counts and lengths
that damage has changed. Here every length is compared with what is left of the file, and a value
is decoded when somebody asks for it.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
)

from chairlift.cluster.errors import ModelError

__all__ = ["GgufFile", "GgufTensor"]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_NAME = 0xFFFF
_MAX_RANK = 4
_MAX_ITEMS = 1 << 24
"""Items of an array; far above any vocabulary, low enough to walk and to hold in memory."""
_MAX_SHOWN = 160
"""Characters of an explanation."""
_MIN_PAIR = 8 + 4 + 1
_MIN_ROW = 8 + 4 + 8 + 4 + 8

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_SCALARS: Mapping[GGUFValueType, np.dtype[Any]] = {
    GGUFValueType.UINT8: np.dtype("u1"),
    GGUFValueType.INT8: np.dtype("i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.BOOL: np.dtype("?"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor, still in the encoding of the file.

    Attributes:
        shape: rows first, as torch has it (the file counts the other way round).
        type_name: encoding, such as ``F32`` or ``Q4_1``.
        raw: the bytes in the mapped file, read-only, ``[*shape[:-1], bytes per row]``.
    """

    name: str
    shape: tuple[int, ...]
    type_name: str
    raw: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class GgufFile:
    """An open GGUF file; it stays mapped for as long as this or any ``raw`` lives.

    Attributes:
        metadata: plain Python values and lists; each access decodes anew. Text that is not UTF-8
            raises ModelError there.
        tensors: by the names in the file, in its order.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Map the file and check its header, metadata and tensor table.

        Raises:
            ModelError: it cannot be read, is no GGUF file, is damaged or is cut short.
        """
        try:
            if not path.stat().st_size:
                raise ModelError(f"{path} is empty; download it again")
            data = np.memmap(path, mode="r").view(np.ndarray)
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error.strerror}") from None
        cursor = _Cursor(path, data)
        num_tensors, num_keys = _read_header(cursor)
        metadata = _read_metadata(cursor, num_keys)
        rows = _read_table(cursor, num_tensors)
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise cursor.damaged(f"its alignment is {alignment!r}")
        start = -(-cursor.position // alignment) * alignment
        _check_extents(cursor, rows, start, alignment)
        tensors = {row.name: row.tensor(data, start) for row in rows}
        return cls(path=path, metadata=metadata, tensors=tensors)


class _Cursor:
    """A place in the mapped file that never passes its end."""

    __slots__ = ("data", "path", "position", "view")

    def __init__(self, path: Path, data: npt.NDArray[np.uint8]) -> None:
        self.path = path
        self.data = data
        self.view = data.data
        self.position = 0

    def damaged(self, what: str) -> ModelError:
        """Names in ``what`` must be quoted with ``!r``: after damage they hold anything."""
        if len(what) > _MAX_SHOWN:
            what = f"{what[:_MAX_SHOWN]}…"
        return ModelError(f"{self.path} is damaged: {what}; download it again")

    def skip(self, size: int) -> int:
        """Pass ``size`` bytes and return where they begin."""
        start = self.position
        if size > len(self.data) - start:
            raise self.damaged(f"it is cut short, {size} bytes are missing at byte {start}")
        self.position = start + size
        return start

    def u32(self) -> int:
        value: int = _U32.unpack_from(self.view, self.skip(4))[0]
        return value

    def u64(self) -> int:
        value: int = _U64.unpack_from(self.view, self.skip(8))[0]
        return value

    def count(self, things: str, size: int) -> int:
        """A number of things that take at least ``size`` bytes each."""
        count = self.u64()
        if count * size > len(self.data) - self.position:
            raise self.damaged(f"it claims {count} {things}, more than fit")
        return count

    def name(self) -> str:
        length = self.u64()
        if length > _MAX_NAME:
            raise self.damaged(f"a name of {length} bytes at byte {self.position}")
        start = self.skip(length)
        try:
            return str(self.view[start : self.position], "utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"a name that is not UTF-8 at byte {start}") from None

    def skip_strings(self, count: int) -> None:
        view, end, position, unpack = self.view, len(self.data), self.position, _U64.unpack_from
        for _ in range(count):
            if position + 8 > end:
                break
            position += 8 + unpack(view, position)[0]
        self.skip(position - self.position)


@dataclass(frozen=True, slots=True)
class _Value:
    """Where a metadata value lies; ``count`` is None unless it is an array."""

    kind: GGUFValueType
    count: int | None
    start: int


class _Metadata(Mapping[str, Any]):
    """Decodes on access; see ``GgufFile.metadata``."""

    def __init__(self, cursor: _Cursor, values: Mapping[str, _Value]) -> None:
        self._cursor = cursor
        self._values = values

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        items = self._decode(key, value)
        return items[0] if value.count is None else items

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _decode(self, key: str, value: _Value) -> list[Any]:
        count = 1 if value.count is None else value.count
        view, position = self._cursor.view, value.start
        if value.kind is not GGUFValueType.STRING:
            dtype = _SCALARS[value.kind]
            return np.frombuffer(view, dtype, count, position).tolist()  # type: ignore[no-any-return]  # numpy says Any
        texts = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + _U64.unpack_from(view, position)[0]
                texts.append(str(view[start:position], "utf-8"))
        except UnicodeDecodeError:
            raise self._cursor.damaged(f"{key!r} holds text that is not UTF-8") from None
        return texts


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the tensor table."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    size: int

    def tensor(self, data: npt.NDArray[np.uint8], start: int) -> GgufTensor:
        begin = start + self.offset
        block, block_bytes = GGML_QUANT_SIZES[self.type]
        raw = data[begin : begin + self.size]
        return GgufTensor(
            name=self.name,
            shape=self.shape,
            type_name=self.type.name,
            raw=raw.reshape(*self.shape[:-1], self.shape[-1] // block * block_bytes),
        )


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    if bytes(cursor.view[:4]) != _MAGIC:
        raise ModelError(
            f"{cursor.path} is no GGUF file: it does not begin with 'GGUF'; download it again"
        )
    cursor.skip(4)
    version = cursor.u32()
    if version not in _VERSIONS:
        raise ModelError(
            f"{cursor.path} has GGUF version {version}, Chairlift reads 2 and 3 (little-endian);"
            " download it again, in the present format"
        )
    return cursor.count("tensors", _MIN_ROW), cursor.count("metadata keys", _MIN_PAIR)


def _read_metadata(cursor: _Cursor, count: int) -> _Metadata:
    values: dict[str, _Value] = {}
    for _ in range(count):
        key = cursor.name()
        if key in values:
            raise cursor.damaged(f"the metadata key {key!r} appears twice")
        values[key] = _read_value(cursor, key)
    return _Metadata(cursor, values)


def _read_value(cursor: _Cursor, key: str) -> _Value:
    """Note where a value lies, and step over it."""
    kind, length = _value_type(cursor, key), None
    if kind is GGUFValueType.ARRAY:
        kind = _value_type(cursor, key)
        length = cursor.count(f"items of {key!r}", 1)
        if kind is GGUFValueType.ARRAY or length > _MAX_ITEMS:
            raise cursor.damaged(f"{key!r} is an array of {length} items of type {kind.name}")
    start = cursor.position
    count = 1 if length is None else length
    if kind is GGUFValueType.STRING:
        cursor.skip_strings(count)
    else:
        cursor.skip(count * _SCALARS[kind].itemsize)
    return _Value(kind, length, start)


def _value_type(cursor: _Cursor, key: str) -> GGUFValueType:
    number = cursor.u32()
    try:
        return GGUFValueType(number)
    except ValueError:
        raise cursor.damaged(f"{key!r} has the unknown type {number}") from None


def _read_table(cursor: _Cursor, count: int) -> list[_Row]:
    rows = [_read_row(cursor) for _ in range(count)]
    if len({row.name for row in rows}) != count:
        raise cursor.damaged("a tensor appears twice")
    return rows


def _read_row(cursor: _Cursor) -> _Row:
    name = cursor.name()
    rank = cursor.u32()
    if not 1 <= rank <= _MAX_RANK:
        raise cursor.damaged(f"tensor {name!r} has {rank} dimensions")
    shape = tuple(cursor.u64() for _ in range(rank))[::-1]
    number = cursor.u32()
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise cursor.damaged(
            f"tensor {name!r} has the type {number}, which the installed gguf package does not know"
        ) from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if 0 in shape or shape[-1] % block:
        raise cursor.damaged(f"tensor {name!r} of type {kind.name} has the shape {shape}")
    size = math.prod(shape) // block * block_bytes
    return _Row(name=name, shape=shape, type=kind, offset=cursor.u64(), size=size)


def _check_extents(cursor: _Cursor, rows: list[_Row], start: int, alignment: int) -> None:
    """Every tensor lies in the data, aligned, and none over another."""
    room = len(cursor.data) - start
    for row in rows:
        if row.offset % alignment:
            raise cursor.damaged(f"tensor {row.name!r} is not aligned")
        if row.offset + row.size > room:
            raise cursor.damaged(
                f"tensor {row.name!r} ends {row.offset + row.size - room} bytes past the end"
            )
    for before, after in pairwise(sorted(rows, key=lambda row: row.offset)):
        if before.offset + before.size > after.offset:
            raise cursor.damaged(f"tensors {before.name!r} and {after.name!r} overlap")
