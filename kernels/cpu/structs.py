"""The structures of ``api.h``, field by field."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar

__all__ = ["Angles", "Between", "Cache", "Heads", "Layer", "Matrix", "Part", "Rows", "Shape"]

_POINTER, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
_Fields = Sequence[tuple[str, Any]]


class Shape(ctypes.Structure):
    """What the attention of a layer looks like."""

    _fields_: ClassVar[_Fields] = [
        ("heads", _LONG),
        ("kv_heads", _LONG),
        ("head_dim", _LONG),
        ("block_size", _LONG),
        ("half", _LONG),
        ("window", _LONG),
        ("scale", _FLOAT),
        ("soft_cap", _FLOAT),
    ]


class Part(ctypes.Structure):
    """Neighbouring outputs of a matrix."""

    _fields_: ClassVar[_Fields] = [("weight", _POINTER), ("form", _LONG), ("outputs", _LONG)]


class Matrix(ctypes.Structure):
    """A matrix, part after part, and its bias."""

    _fields_: ClassVar[_Fields] = [
        ("parts", _POINTER),
        ("count", _LONG),
        ("bias", _POINTER),
        ("inputs", _LONG),
        ("outputs", _LONG),
    ]


class Layer(ctypes.Structure):
    """The weights of a layer."""

    _fields_: ClassVar[_Fields] = [
        ("attention_norm", _POINTER),
        ("mlp_norm", _POINTER),
        ("query_norm", _POINTER),
        ("key_norm", _POINTER),
        ("attention_post_norm", _POINTER),
        ("mlp_post_norm", _POINTER),
        ("qkv", Matrix),
        ("attention_out", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("activation", _LONG),
        ("heads", _LONG),
    ]


class Cache(ctypes.Structure):
    """K and V of a layer."""

    _fields_: ClassVar[_Fields] = [("keys", _POINTER), ("values", _POINTER)]


class Rows(ctypes.Structure):
    """The rows of a step."""

    _fields_: ClassVar[_Fields] = [
        ("count", _LONG),
        ("positions", _POINTER),
        ("slots", _POINTER),
        ("tables", _POINTER),
        ("width", _LONG),
    ]


class Angles(ctypes.Structure):
    """By which positions are rotated."""

    _fields_: ClassVar[_Fields] = [("cos", _POINTER), ("sin", _POINTER), ("half", _LONG)]


class Heads(ctypes.Structure):
    """How layers that are alike attend, and the tiles of a step."""

    _fields_: ClassVar[_Fields] = [
        ("shape", Shape),
        ("angles", Angles),
        ("tiles", _POINTER),
        ("tile_count", _LONG),
    ]


class Between(ctypes.Structure):
    """Room for what passes between the kernels of a layer."""

    _fields_: ClassVar[_Fields] = [
        ("normed", _POINTER),
        ("qkv", _POINTER),
        ("attended", _POINTER),
        ("gate_up", _POINTER),
        ("inner", _POINTER),
        ("share", _POINTER),
    ]
