"""Values that a JSON schema takes, as Hypothesis draws them; of the keywords that ours use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

__all__ = ["values_of"]

MANY = 3
"""Entries of a list or object at most, if the schema does not want more."""


def values_of(schema: Mapping[str, Any], components: Mapping[str, Any], depth: int = 6) -> Any:
    """A strategy. ``components``: what references lead to."""
    if "$ref" in schema:
        return values_of(components[schema["$ref"].rsplit("/", 1)[1]], components, depth)
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    if "properties" not in schema and ("anyOf" in schema or "oneOf" in schema):
        kinds = schema.get("anyOf") or schema["oneOf"]
        return st.one_of([values_of(kind, components, depth) for kind in kinds])
    types = schema.get("type", ["null", "string", "integer"])
    return st.one_of(
        [
            _of_type(type_, schema, components, depth)
            for type_ in ([types] if isinstance(types, str) else types)
        ]
    )


def _of_type(
    type_: str, schema: Mapping[str, Any], components: Mapping[str, Any], depth: int
) -> st.SearchStrategy[Any]:
    least = schema.get("minLength", schema.get("minItems", 0))
    bounds = schema.get("minimum", -(2**40)), schema.get("maximum", 2**40)
    match type_:
        case "object":
            made: st.SearchStrategy[Any] = _object(schema, components, depth)
        case "array":
            items = values_of(schema.get("items", {}), components, depth - 1)
            made = st.lists(items, min_size=least, max_size=least + MANY if depth > 0 else least)
        case "string" if "pattern" in schema:
            made = st.from_regex(schema["pattern"], fullmatch=True)
        case "string":
            made = st.text(min_size=least, max_size=least + 5)
        case "integer":
            made = st.integers(*bounds)
        case "number":
            made = st.floats(schema.get("exclusiveMinimum", bounds[0]), bounds[1], exclude_min=True)
        case "boolean":
            made = st.booleans()
        case _:
            made = st.none()
    return made


def _object(
    schema: Mapping[str, Any], components: Mapping[str, Any], depth: int
) -> st.SearchStrategy[dict[str, Any]]:
    fields = schema.get("properties", {})
    must = set(schema.get("required", ()))
    for kind in schema.get("oneOf", [])[:1]:
        must |= set(kind["required"])
        fields = {name: each for name, each in fields.items() if name not in _absent(kind)}
    strategies = {
        name: st.deferred(lambda each=each: values_of(each, components, depth - 1))
        for name, each in fields.items()
        if depth > 0 or name in must
    }
    some = st.sets(st.sampled_from(sorted(strategies)), max_size=4) if strategies else st.just(())
    return some.flatmap(
        lambda names: st.fixed_dictionaries({name: strategies[name] for name in {*names, *must}})
    )


def _absent(kind: Mapping[str, Any]) -> set[str]:
    nothing = {"type": "null"}
    return {name for name, each in kind.get("properties", {}).items() if each == nothing}
