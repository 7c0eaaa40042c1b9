"""How many members of a JSON schema's objects may be left out at one place of a text.

Owns that count. Where a member may come or not, all that may come behind it has to be looked at, so
masks of very wide objects take long; the parser's limits (``cluster.grammar``) are for this width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["MAX_WIDTH", "width_fault"]

MAX_WIDTH = 1000

_ALTERNATIVES = ("anyOf", "oneOf", "allOf")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = (*_ALTERNATIVES, "prefixItems")
_ONES = ("items", "additionalProperties")


def width_fault(schema: Mapping[str, Any]) -> str | None:
    """Names the first object that is too wide."""
    widths = _Widths(schema)
    open_: list[tuple[str, Any]] = [("", schema)]
    while open_:
        place, each = open_.pop()
        if isinstance(each, Mapping):
            if (width := widths.of(each)) > MAX_WIDTH:
                where = f"at {place}, " if place else ""
                return f"{where}{width} properties may be left out, of {MAX_WIDTH} at most"
            open_ += ((f"{place}.{key}".lstrip("."), inner) for key, inner in _within(each))
    return None


def _within(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The schemas in a schema, and where they stand."""
    for key in _MAPS:
        if isinstance(found := schema.get(key), Mapping):
            yield from ((f"{key}.{name}", each) for name, each in found.items())
    for key in _LISTS:
        if isinstance(found := schema.get(key), list):
            yield from ((f"{key}[{index}]", each) for index, each in enumerate(found))
    yield from ((key, schema[key]) for key in _ONES if key in schema)


class _Widths:
    """Of the schemas within one document; each is looked at once."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._known: dict[int, int] = {}

    def of(self, schema: object) -> int:
        """Also of what the schema refers to; 0 for one that it is part of, and for what is none."""
        if not isinstance(schema, Mapping):
            return 0
        if id(schema) not in self._known:
            self._known[id(schema)] = 0
            self._known[id(schema)] = self._find(schema)
        return self._known[id(schema)]

    def _find(self, schema: Mapping[str, Any]) -> int:
        properties, required = schema.get("properties"), schema.get("required")
        width = 0
        if isinstance(properties, Mapping):
            needed = (
                {each for each in required if isinstance(each, str)}
                if isinstance(required, list)
                else set()
            )
            width = sum(name not in needed for name in properties)
        for key in _ALTERNATIVES:
            if isinstance(members := schema.get(key), list):
                width += sum(map(self.of, members))
        return width + self.of(self._target(schema.get("$ref")))

    def _target(self, reference: object) -> object:
        """What a reference within the document leads to."""
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return None
        found: object = self._document
        for step in reference[2:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found
