from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from chairlift.cluster.errors import ModelError
from chairlift.cluster.gguf_file import GgufFile

KINDS = gguf.GGMLQuantizationType


def write(
    path: Path,
    *,
    metadata: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    tensors: Mapping[str, tuple[np.ndarray, KINDS]] | None = None,
) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    metadata(writer)
    for name, (values, kind) in (tensors or {}).items():
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def ramp(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) / 7 - 3


def add_examples(writer: gguf.GGUFWriter) -> None:
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_uint64("u64", 1 << 63)
    writer.add_int64("i64", -(1 << 62))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 1e300)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "Größe 木 🚡")
    writer.add_array("texts", ["", "a", "éñ"])
    writer.add_array("integers", [3, -1, 7])
    writer.add_array("floats", [0.25, -8.0])
    writer.add_array("flags", [True, False])


@pytest.fixture
def example(tmp_path: Path) -> Path:
    return write(
        tmp_path / "example.gguf",
        metadata=add_examples,
        tensors={"a": (ramp(2, 32), KINDS.Q4_1), "b": (ramp(3), KINDS.F32)},
    )


def test_metadata_of_every_type_become_plain_values(example: Path) -> None:
    assert dict(GgufFile.open(example).metadata) == {
        "general.architecture": "llama",
        "u8": 200,
        "i8": -100,
        "u16": 60000,
        "i16": -30000,
        "u32": 4_000_000_000,
        "i32": -2_000_000_000,
        "u64": 1 << 63,
        "i64": -(1 << 62),
        "f32": 0.5,
        "f64": 1e300,
        "yes": True,
        "no": False,
        "text": "Größe 木 🚡",
        "texts": ["", "a", "éñ"],
        "integers": [3, -1, 7],
        "floats": [0.25, -8.0],
        "flags": [True, False],
    }


def test_values_are_python_objects_not_numpy_scalars(example: Path) -> None:
    metadata = GgufFile.open(example).metadata
    assert type(metadata["u32"]) is int
    assert type(metadata["f32"]) is float
    assert type(metadata["yes"]) is bool
    assert {type(item) for item in metadata["integers"]} == {int}


def test_a_missing_key_is_a_key_error(example: Path) -> None:
    metadata = GgufFile.open(example).metadata
    assert "absent" not in metadata
    with pytest.raises(KeyError):
        metadata["absent"]


@pytest.mark.parametrize("kind", [KINDS.F32, KINDS.F16, KINDS.BF16, KINDS.Q8_0, KINDS.Q4_1])
def test_raw_rows_are_what_the_encoder_wrote(tmp_path: Path, kind: KINDS) -> None:
    values = ramp(3, 64)
    path = write(
        tmp_path / "m.gguf",
        tensors={"before": (ramp(1, 32), KINDS.Q4_0), "w": (values, kind)},
    )
    tensor = GgufFile.open(path).tensors["w"]
    assert (tensor.name, tensor.shape, tensor.type_name) == ("w", (3, 64), kind.name)
    expected = dequantize(quantize(values, kind), kind)
    np.testing.assert_array_equal(dequantize(tensor.raw, kind), expected)


def test_rows_come_first_in_shapes(tmp_path: Path) -> None:
    values = ramp(2, 3, 4)
    tensor = GgufFile.open(write(tmp_path / "m.gguf", tensors={"w": (values, KINDS.F32)})).tensors[
        "w"
    ]
    assert tensor.shape == (2, 3, 4)
    np.testing.assert_array_equal(tensor.raw.view(np.float32), values)


def test_the_mapped_file_cannot_be_written_to(example: Path) -> None:
    raw = GgufFile.open(example).tensors["a"].raw
    with pytest.raises(ValueError, match="read-only"):
        raw[0, 0] = 1


def test_another_alignment_is_respected(tmp_path: Path) -> None:
    def align(writer: gguf.GGUFWriter) -> None:
        writer.add_custom_alignment(256)

    path = write(
        tmp_path / "m.gguf",
        metadata=align,
        tensors={"a": (ramp(5), KINDS.F32), "b": (ramp(6), KINDS.F32)},
    )
    raw = GgufFile.open(path).tensors["b"].raw
    np.testing.assert_array_equal(raw.view(np.float32), ramp(6))


def test_a_file_without_tensors_opens(tmp_path: Path) -> None:
    assert GgufFile.open(write(tmp_path / "m.gguf", metadata=add_examples)).tensors == {}


# Damage.

HEADER = 24


def damaged(path: Path, change: Callable[[bytearray], object]) -> Path:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)
    return path


def complaint(path: Path) -> str:
    """The message on opening and decoding everything."""
    with pytest.raises(ModelError) as caught:
        dict(GgufFile.open(path).metadata)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_a_file_that_is_cut_short_anywhere_is_refused(example: Path, tmp_path: Path) -> None:
    data = example.read_bytes()
    end = len(data) - 32 + 3 * 4  # three floats, then padding
    cut = tmp_path / "cut.gguf"
    for length in range(end):
        cut.write_bytes(data[:length])
        assert "download it again" in complaint(cut), length
    cut.write_bytes(data[:end])
    assert set(GgufFile.open(cut).tensors) == {"a", "b"}


def test_a_file_of_another_kind_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_bytes(b"<!DOCTYPE html><html>not found</html>")
    assert "no GGUF file" in complaint(path)


@pytest.mark.parametrize("version", [0, 1, 4, 3 << 24])
def test_other_versions_and_the_other_byte_order_are_refused(example: Path, version: int) -> None:
    damaged(example, lambda data: struct.pack_into("<I", data, 4, version))
    assert f"version {version}" in complaint(example)


@pytest.mark.parametrize("count", [1 << 63, (1 << 64) - 1, 1 << 20, 100])
@pytest.mark.parametrize("offset", [8, 16], ids=["tensors", "keys"])
def test_absurd_counts_in_the_header_are_refused(example: Path, offset: int, count: int) -> None:
    damaged(example, lambda data: struct.pack_into("<Q", data, offset, count))
    assert "download it again" in complaint(example)


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 8, 1 << 40, 1 << 16])
@pytest.mark.parametrize("before", ["general.architecture", "texts", "integers", "text"])
def test_absurd_lengths_in_the_metadata_are_refused(
    example: Path, before: str, length: int
) -> None:
    """The key's own length, and the length of the string or array behind it."""
    original = example.read_bytes()
    place = original.index(struct.pack("<Q", len(before)) + before.encode())
    array = before in ("texts", "integers")
    for offset in (place, place + 8 + len(before) + 4 + 4 * array):
        changed = bytearray(original)
        struct.pack_into("<Q", changed, offset, length)
        example.write_bytes(changed)
        assert "download it again" in complaint(example)


def test_an_absurd_length_inside_an_array_of_strings_is_refused(example: Path) -> None:
    place = example.read_bytes().index(struct.pack("<Qs", 1, b"a"))
    damaged(example, lambda data: struct.pack_into("<Q", data, place, (1 << 64) - 1))
    assert "cut short" in complaint(example)


def test_an_array_of_more_items_than_any_vocabulary_is_refused(tmp_path: Path) -> None:
    """Zeros make endless empty strings, and would keep the reader busy."""
    items = (1 << 24) + 1
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<QsIIQ", 1, b"k", 9, 8, items)
    path = tmp_path / "zeros.gguf"
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + 8 * items)
    assert str(items) in complaint(path)


def test_arrays_of_arrays_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "nested.gguf"
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)
    path.write_bytes(head + struct.pack("<QsIIQ", 1, b"k", 9, 9, 1) + bytes(64))
    assert "ARRAY" in complaint(path)


def test_text_that_is_not_utf8_is_refused_when_read(example: Path) -> None:
    damaged(example, lambda data: data.__setitem__(data.index("éñ".encode()), 0xFF))
    assert "texts" in complaint(example)


def table_row(name: bytes, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return (
        struct.pack("<Q", len(name))
        + name
        + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    )


def file_of(path: Path, *rows: bytes, data: int = 256) -> Path:
    """No metadata, the given table, and so many zero bytes."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(rows), 0) + b"".join(rows)
    path.write_bytes(head + bytes(-len(head) % 32 + data))
    return path


def test_a_table_of_sound_rows_is_read(tmp_path: Path) -> None:
    rows = table_row(b"a", (8,), KINDS.F32, 0), table_row(b"b", (32, 2), KINDS.Q4_0, 32)
    tensors = GgufFile.open(file_of(tmp_path / "m.gguf", *rows)).tensors
    assert [(tensor.name, tensor.shape) for tensor in tensors.values()] == [
        ("a", (8,)),
        ("b", (2, 32)),
    ]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([table_row(b"a", (8,), 0, 0), table_row(b"a", (8,), 0, 32)], "appears twice"),
        ([table_row(b"a", (9,), 0, 0), table_row(b"b", (8,), 0, 32)], "overlap"),
        ([table_row(b"a", (8,), 0, 31)], "not aligned"),
        ([table_row(b"a", (8,), 0, 256)], "past the end"),
        ([table_row(b"a", (8,), 0, (1 << 64) - 32)], "past the end"),
        ([table_row(b"a", (1 << 40, 1 << 40), 0, 0)], "past the end"),
        ([table_row(b"a", (1 << 63, 1 << 63, 1 << 63, 4), 0, 0)], "past the end"),
        ([table_row(b"a", (), 0, 0)], "dimensions"),
        ([table_row(b"a", (1, 1, 1, 1, 1), 0, 0)], "dimensions"),
        ([table_row(b"a", (0, 1 << 63), 0, 0)], "shape"),
        ([table_row(b"a", (31,), KINDS.Q4_0, 0)], "shape"),
        ([table_row(b"a", (8,), 4711, 0)], "type 4711"),
        ([table_row(b"\xff", (8,), 0, 0)], "UTF-8"),
    ],
)
def test_impossible_tensors_are_refused(tmp_path: Path, rows: list[bytes], words: str) -> None:
    message = complaint(file_of(tmp_path / "m.gguf", *rows))
    assert words in message
    assert "download it again" in message


def test_a_key_that_appears_twice_is_refused(tmp_path: Path) -> None:
    pair = struct.pack("<QsIB", 1, b"k", 0, 1)
    path = tmp_path / "m.gguf"
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 2) + 2 * pair + bytes(32))
    assert "'k' appears twice" in complaint(path)


def test_a_damaged_name_does_not_break_the_message_into_lines(tmp_path: Path) -> None:
    name = b"k\n" * 1000
    path = tmp_path / "m.gguf"
    pair = struct.pack("<Q", len(name)) + name + struct.pack("<I", 4711)
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + pair)
    assert len(complaint(path)) < 500


@pytest.mark.parametrize("alignment", [0, 3, 48])
def test_an_alignment_that_is_no_power_of_two_is_refused(tmp_path: Path, alignment: int) -> None:
    path = write(
        tmp_path / "m.gguf",
        metadata=lambda writer: writer.add_uint32("general.alignment", alignment),
    )
    assert "alignment" in complaint(path)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.gguf"
    empty.touch()
    assert "empty" in complaint(empty)
    assert "No such file" in complaint(tmp_path / "absent.gguf")
    assert "directory" in complaint(tmp_path)
