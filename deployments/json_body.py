"""A request body as a JSON object.

Owns the reading of JSON, and how a fault in it is put. It knows no fields.
"""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

from chairlift.cluster.errors import InvalidRequest

__all__ = ["read_object"]

MAX_SEARCHED = 64 * 1024
"""Bytes of a body that is no JSON, up to which it is read again to name the field at fault."""


def read_object(body: bytes) -> dict[str, Any]:
    """The object that a body is.

    Raises:
        InvalidRequest: it is no JSON object (``invalid_json``). ``param`` is set where all that is
            wrong is a number that JSON does not have: NaN, Infinity, 1e999.
    """
    try:
        tree = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if name := _field_that_is_not_finite(body):
            message = f"{name}: must be finite; JSON has no NaN and no infinity"
            raise InvalidRequest(message, param=name, code="invalid_json") from None
        raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(tree, dict):
        raise InvalidRequest("The body must be a JSON object", code="invalid_json")
    return tree


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
