"""JSON schemas to try grammars on: written by hand for what is known to be hard, and generated.

Owns the schemas; what is done with them is ``evaluation.grammars``'. The same seed gives the same
schemas.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

__all__ = ["schemas"]

Schema: TypeAlias = dict[str, Any]

_MAX_DEPTH = 4
_NAMES = ("id", "name", "größe", "tags", "kind", "value", "a b", 'q"uote', "next", "items", "url")
_WORDS = (
    "red",
    "green",
    "",
    "naïve",
    "日本",
    'say "hi"',
    "back\\slash",
    "line\nbreak",
    "😀",
    "</s>",
)
_PATTERNS = (
    "^[A-Z]{2}[0-9]{4}$",
    "^(yes|no|maybe)$",
    "^[a-z]+(-[a-z]+)*$",
    r"^\d{3}-\d{4}$",
    "^#[0-9a-f]{6}$",
    "^$",
    "a+b",
    r"^[^\s@]+@[^\s@]+$",
)
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email", "hostname", "uri", "ipv6")


def schemas(count: int, seed: int) -> list[Schema]:
    """Those written by hand, then as many generated ones as make ``count``."""
    by_hand = [*_BY_HAND, *_NOT_OFFERED]
    draw = random.Random(seed)
    return [*by_hand, *(_document(draw) for _ in range(count - len(by_hand)))][:count]


def _document(draw: random.Random) -> Schema:
    """A schema with definitions, one of which may refer to itself."""
    names = [f"d{index}" for index in range(draw.randrange(4))]
    definitions = {
        name: _schema(draw, _MAX_DEPTH - 2, names[: index + 1]) for index, name in enumerate(names)
    }
    return {"$defs": definitions, **_schema(draw, _MAX_DEPTH, names)}


def _schema(draw: random.Random, depth: int, names: list[str]) -> Schema:
    leaves: list[Callable[[random.Random], Schema]] = [_string, _number, _enum, _simple]
    if depth <= 0:
        return draw.choice(leaves)(draw)
    kind = draw.randrange(10)
    if kind < 4:
        return _object(draw, depth, names)
    if kind < 6:
        return _array(draw, depth, names)
    if kind == 6:
        return {"anyOf": [_schema(draw, depth - 1, names) for _ in range(draw.randint(2, 4))]}
    if kind == 7 and names:  # within another, and optional: it may refer to itself, and can end
        target = {"$ref": f"#/$defs/{draw.choice(names)}"}
        return _closed({"next": {"anyOf": [{"type": "null"}, target]}})
    return draw.choice(leaves)(draw)


def _object(draw: random.Random, depth: int, names: list[str]) -> Schema:
    keys = draw.sample(_NAMES, draw.randint(0, 5))
    schema: Schema = {
        "type": "object",
        "properties": {key: _schema(draw, depth - 1, names) for key in keys},
        "required": [key for key in keys if draw.random() < 0.6],
    }
    extra = draw.randrange(4)
    if extra < 3:
        schema["additionalProperties"] = False if extra else _schema(draw, 0, names)
    return schema


def _array(draw: random.Random, depth: int, names: list[str]) -> Schema:
    schema: Schema = {"type": "array", "items": _schema(draw, depth - 1, names)}
    if draw.random() < 0.3:
        schema["prefixItems"] = [_schema(draw, depth - 1, names) for _ in range(2)]
    low = draw.randrange(3)
    return schema | {"minItems": low, "maxItems": low + draw.randrange(4)}


def _string(draw: random.Random) -> Schema:
    match draw.randrange(4):
        case 0:
            return {"type": "string", "pattern": draw.choice(_PATTERNS)}
        case 1:
            return {"type": "string", "format": draw.choice(_FORMATS)}
        case 2:
            low = draw.randrange(5)
            return {"type": "string", "minLength": low, "maxLength": low + draw.randrange(20)}
        case _:
            return {"type": "string"}


def _number(draw: random.Random) -> Schema:
    low = draw.randint(-1000, 1000)
    schema: Schema = {"type": draw.choice(("integer", "number"))}
    match draw.randrange(5):
        case 0:
            return schema
        case 1:
            return schema | {"minimum": low}
        case 2:
            return schema | {"exclusiveMinimum": low, "exclusiveMaximum": low + 50}
        case 3:
            return {"type": "integer", "multipleOf": draw.choice((2, 5, 7, 10))}
        case _:
            return schema | {"minimum": low, "maximum": low + draw.randint(0, 500)}


def _enum(draw: random.Random) -> Schema:
    values: list[Any] = [*draw.sample(_WORDS, draw.randint(1, 4)), draw.randint(-9, 9)]
    if draw.random() < 0.3:
        return {"const": draw.choice([*values, {"x": [1, None]}])}
    return {"enum": values + draw.choice([[], [None], [True, 1.5], [{"k": "v"}]])}


def _simple(draw: random.Random) -> Schema:
    kinds: list[str | list[str]] = ["boolean", "null", ["string", "null"], ["integer", "boolean"]]
    return {"type": draw.choice(kinds)}


def _closed(properties: Mapping[str, Any], *optional: str) -> Schema:
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": dict(properties),
        "required": required,
        "additionalProperties": False,
    }


_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}

_BY_HAND: tuple[Schema, ...] = (
    {},
    {"type": "object"},
    {"type": "array"},
    {"type": ["object", "array", "null"]},
    {"const": "<|im_end|>"},
    {"enum": ["<|im_start|>", "<|endoftext|>"]},
    {"title": "Bare", "description": "described", "type": "string", "default": "x"},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "integer"},
    {"definitions": {"old": _WHOLE}, "type": "array", "items": {"$ref": "#/definitions/old"}},
    # A tree, a list with an end, two definitions that refer to each other.
    {
        "$defs": {"tree": _closed({"v": _WHOLE, "c": {"type": "array", "maxItems": 2}}, "c")},
        "$ref": "#/$defs/tree",
    },
    {
        "$defs": {
            "tree": _closed(
                {
                    "value": _WHOLE,
                    "children": {
                        "type": "array",
                        "items": {"$ref": "#/$defs/tree"},
                        "maxItems": 2,
                    },
                }
            )
        },
        "$ref": "#/$defs/tree",
    },
    {
        "$defs": {
            "node": _closed(
                {"value": _TEXT, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}
            )
        },
        "$ref": "#/$defs/node",
    },
    {
        "$defs": {
            "even": _closed({"n": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/odd"}]}}),
            "odd": _closed({"n": {"$ref": "#/$defs/even"}}),
        },
        "$ref": "#/$defs/even",
    },
    # Unions that are told apart by a constant, by a type, and not at all.
    {
        "oneOf": [
            _closed({"kind": {"const": "circle"}, "radius": {"type": "number", "minimum": 0}}),
            _closed({"kind": {"const": "square"}, "side": {"type": "number", "minimum": 0}}),
        ]
    },
    {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    {"anyOf": [_closed({"a": _TEXT}), _closed({"a": _WHOLE}), _closed({"a": _TEXT, "b": _TEXT})]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": _TEXT}, "required": ["a"]},
            {"properties": {"b": _WHOLE}, "required": ["b"], "additionalProperties": True},
        ]
    },
    {"type": "object", "additionalProperties": _WHOLE},
    {"type": "object", "patternProperties": {"^x-": _WHOLE}, "additionalProperties": False},
    {"type": "object", "additionalProperties": _WHOLE, "minProperties": 1, "maxProperties": 3},
    {"type": "array", "prefixItems": [_WHOLE, _TEXT], "items": False},
    {"type": "array", "items": {"type": "array", "items": _WHOLE, "maxItems": 3}, "maxItems": 3},
    {"type": "string", "minLength": 3, "maxLength": 3},
    {"type": "string", "pattern": "^(\\([0-9]{3}\\))?[0-9]{3}-[0-9]{4}$"},
    {"type": "string", "pattern": "^[\\u4e00-\\u9fff]{1,4}$"},
    {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 2},
    {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    _closed({f"field_{index}": {"type": ["integer", "null"]} for index in range(40)}),
    _closed({f"flag_{index}": {"type": "boolean"} for index in range(30)}, "flag_0", "flag_29"),
    {"enum": [f"value-{index}" for index in range(2000)]},
    _closed({"only": {"anyOf": [{"const": 1}, {"const": "1"}, {"const": None}]}}),
)

_NOT_OFFERED: tuple[Schema, ...] = (
    {"type": "array", "items": _WHOLE, "uniqueItems": True},
    {"not": {"type": "string"}},
    {"if": {"type": "string"}, "then": {"minLength": 2}, "else": {"type": "integer"}},
    {"type": "array", "contains": _WHOLE},
    {"type": "object", "propertyNames": {"pattern": "^a"}},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"type": "string", "pattern": "(?=a)b"},
    {"$ref": "https://example.com/schema.json"},
    {"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]},
    {"type": "integer", "multipleOf": 10**9 + 7},
)
"""Each is to be refused, rather than to be kept to in part."""
