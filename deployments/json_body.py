"""A request body as a JSON object.

Owns the reading of JSON, how deeply it may be nested, and how a fault in it is put. It knows no
fields. What leaves here may be walked by recursion: it is nested ``MAX_DEPTH`` deep at most.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

import orjson

from chairlift.cluster.errors import InvalidRequest

__all__ = ["read_object"]

MAX_DEPTH = 64
"""Lists and objects inside one another, the body itself not counted."""
MAX_SEARCHED = 64 * 1024
"""Bytes of a body that is no JSON, up to which it is read again to name the field at fault."""

_MARKS = re.compile(rb'"((?:[^"\\]++|\\.)*+)"?|[\[\]{}]', re.DOTALL)
"""What tells the depth of JSON: strings, which hide brackets, and brackets."""


def read_object(body: bytes) -> dict[str, Any]:
    """The object that a body is.

    Raises:
        InvalidRequest: it is no JSON object (``invalid_json``), or too deep. ``param`` is set
            where it is, and where all that is wrong is a number that JSON does not have: NaN,
            Infinity, 1e999.
    """
    try:
        tree = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if name := _field_beyond_parsing(body):
            raise _too_deep(name) from None
        if name := _field_that_is_not_finite(body):
            message = f"{name}: must be finite; JSON has no NaN and no infinity"
            raise InvalidRequest(message, param=name, code="invalid_json") from None
        raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(tree, dict):
        raise InvalidRequest("The body must be a JSON object", code="invalid_json")
    for name, value in tree.items():
        if _is_too_deep(value):
            raise _too_deep(name)
    return tree


def _is_too_deep(value: object) -> bool:
    """Level by level, without recursion."""
    level = _containers([value])
    for _ in range(MAX_DEPTH):
        if not level:
            return False
        level = [
            inner
            for outer in level
            for inner in _containers(outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def _containers(values: Iterable[object]) -> list[list[Any] | dict[str, Any]]:
    return [value for value in values if type(value) is list or type(value) is dict]


def _field_beyond_parsing(body: bytes) -> str | None:
    """The object's field that goes deeper than any parser would follow."""
    depth, name = 0, b""
    if len(body) > MAX_SEARCHED or not body.lstrip().startswith(b"{"):
        return None
    for mark in _MARKS.finditer(body):
        if mark[1] is not None:
            name = mark[1] if depth == 1 else name
        elif mark[0] in b"[{":
            depth += 1
            if depth > MAX_DEPTH + 1:
                return name.decode(errors="replace")
        else:
            depth -= 1
    return None


def _too_deep(name: str) -> InvalidRequest:
    message = f"{name[:100]}: is nested more than {MAX_DEPTH} deep"
    return InvalidRequest(message, param=name[:100])


def _field_that_is_not_finite(body: bytes) -> str | None:
    """The first of the object's fields with such a number, as the standard library reads it.

    The library writes those numbers too, so clients in Python may well send them.
    """
    if len(body) > MAX_SEARCHED:
        return None
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError):
        return None
    fields = tree.items() if isinstance(tree, dict) else ()
    name = next((name for name, value in fields if not _is_finite(value)), "")
    return name[:100] if name.isidentifier() else None


def _is_finite(value: object) -> bool:
    """Whether each number in ``value`` is; without recursion, since bodies may be nested deeply."""
    open_ = [value]
    while open_:
        match open_.pop():
            case float(number) if not math.isfinite(number):
                return False
            case list(items):
                open_ += items
            case dict(fields):
                open_ += fields.values()
    return True
